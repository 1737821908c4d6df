"""What was deleted from a folder is told to others that have it open, in other processes too."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferscale_sdk.engines.transformers.segments import SegmentStore
from inferscale_sdk.errors import StoreError
from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.tiers import folder
from inferscale_sdk.tiers.deletions import DeletionLog
from inferscale_sdk.tiers.disk import DiskTier

A, B, C = make_key("a"), make_key("b"), make_key("c")


def log_of(root: Path, author: str = "") -> DeletionLog:
    return DeletionLog(root, author=author, every_seconds=0.0)


def test_others_are_told_once_and_the_author_is_not(tmp_path: Path) -> None:
    writer, same, other = log_of(tmp_path, "one"), log_of(tmp_path, "one"), log_of(tmp_path)
    writer.add([A, B])
    assert other.unseen() == {A, B}
    assert other.unseen() == set()
    writer.add([C])
    assert other.unseen() == {C}
    assert same.unseen() == writer.unseen() == set()


def test_what_was_deleted_before_is_not_told(tmp_path: Path) -> None:
    log_of(tmp_path).add([A])
    late = log_of(tmp_path)
    assert late.unseen() == set()
    log_of(tmp_path).add([B])
    assert late.unseen() == {B}


def test_a_look_is_taken_now_and_then(tmp_path: Path) -> None:
    reader = DeletionLog(tmp_path, every_seconds=60.0)
    assert reader.unseen() == set()
    log_of(tmp_path).add([A])
    assert reader.unseen() == set()


def test_half_a_record_is_read_when_it_is_whole(tmp_path: Path) -> None:
    reader = log_of(tmp_path)
    place = tmp_path / "forgotten"
    place.mkdir()
    with (place / "author.1.gone").open("ab", buffering=0) as file:
        file.write(f"{A}\n{B[:7]}".encode())
        assert reader.unseen() == {A}
        late = log_of(tmp_path)
        file.write(f"{B[7:]}\n".encode())
    assert reader.unseen() == {B}
    assert B in late.unseen()


def test_what_is_no_key_is_passed_over(tmp_path: Path) -> None:
    reader = log_of(tmp_path)
    place = tmp_path / "forgotten"
    place.mkdir()
    (place / "author.1.gone").write_bytes(b"\xff" * 40 + b"\n" + f"{A}\n".encode() + b"z" * 500)
    (place / "notes.txt").write_text(f"{B}\n")
    (place / "author.2.gone").symlink_to(place / "notes.txt")
    assert reader.unseen() == {A}


@pytest.mark.parametrize("lost", ["file", "folder", "store", "moved"])
def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path, lost: str) -> None:
    root = tmp_path / "kv"
    writer, reader = log_of(root), log_of(root)
    writer.add([A])
    assert reader.unseen() == {A}
    match lost:
        case "file":
            next((root / "forgotten").iterdir()).unlink()
        case "folder":
            shutil.rmtree(root / "forgotten")
        case "moved":
            root.rename(tmp_path / "elsewhere")
        case _:
            shutil.rmtree(root)
    assert reader.unseen() == set()
    writer.add([B])
    assert reader.unseen() == {B}


def test_a_disk_that_fills_up_in_the_middle_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = log_of(tmp_path), log_of(tmp_path)
    writer.add([A])
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:10]))
    with pytest.raises(StoreError, match="free some space"):
        writer.add([B])
    monkeypatch.setattr(os, "write", write)
    writer.add([C])
    assert reader.unseen() == {A, C}


def test_a_deletion_that_nobody_can_be_told_of_is_an_error_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, reader = DiskTier(tmp_path, "model"), log_of(tmp_path)
    tier.put(make_segment("a"))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(StoreError, match="cannot be noted"):
            tier.delete_everywhere(A)
    assert reader.unseen() == set()
    tier.delete_everywhere(A)
    assert reader.unseen() == {A}


def test_old_files_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    living = log_of(tmp_path)
    living.add([A])
    dead = log_of(tmp_path)
    dead.add([B])
    dead.close()
    fresh = log_of(tmp_path)
    fresh.add([C])
    fresh.close()
    place = tmp_path / "forgotten"
    month = time.time() - 40 * 86_400
    for file in place.iterdir():
        if C not in file.read_text():
            os.utime(file, (month, month))
    log_of(tmp_path)
    assert {file.read_text().strip() for file in place.iterdir()} == {A, C}


def test_every_way_of_deleting_is_told_and_eviction_is_not(tmp_path: Path) -> None:
    segment = make_segment("a")
    probe = DiskTier(tmp_path / "probe", "model")
    probe.put(segment)
    tier = DiskTier(tmp_path, "model", capacity_bytes=int(probe.used_bytes * 1.5))
    reader = log_of(tmp_path)
    tier.put(segment)
    tier.put(make_segment("b"))
    assert not tier.contains(A), "evicted"
    assert reader.unseen() == set()
    tier.delete(B)
    assert reader.unseen() == {B}
    tier.delete_everywhere(A)
    assert reader.unseen() == {A}, "others may have it though it was evicted here"
    folder.remove(tmp_path, [B, C])
    assert reader.unseen() == {B, C}


def test_files_are_private_and_no_segments(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, "model")
    tier.put(make_segment("a"))
    tier.delete(A)
    (note,) = (tmp_path / "forgotten").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    assert note.parent.stat().st_mode & 0o777 == 0o700
    assert list(folder.segments(tmp_path)) == []
    assert folder.locate(tmp_path, [A]) == {}


DELETE = """
import sys
from pathlib import Path
from inferscale_sdk.tiers.disk import DiskTier
with DiskTier(Path(sys.argv[1]), "another model") as tier:
    tier.delete_everywhere(sys.argv[2])
"""


def test_a_store_in_memory_forgets_what_another_process_deleted(tmp_path: Path) -> None:
    store = SegmentStore("model", host_bytes=1 << 24, disk_path=tmp_path)
    store.put(make_segment("a"))
    store.put(make_segment("b"))
    assert store.get(A) is not None
    subprocess.run([sys.executable, "-c", DELETE, str(tmp_path), A], check=True, timeout=120)
    deadline = time.monotonic() + 30
    while store.get(A) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert store.get(A) is None
    assert store.locate([A, B]) == {B: ("host", "disk")}
