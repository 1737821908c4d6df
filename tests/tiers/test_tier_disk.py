"""The disk tier: the suite of all tiers, damage, shared folders, full disks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.errors import ConfigurationError, StoreError, StoreFull
from inferscale_sdk.kv.codec import dump
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers.disk import DiskTier

SEGMENT = make_segment("a")


class TestDiskTier(TierSuite):
    clock_tick_seconds = 0.02
    overhead_bytes = 512

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> DiskTier:
        return DiskTier(folder, "model", capacity_bytes=capacity_bytes)


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path / "store", "model")


def quarantined(tier: DiskTier) -> list[str]:
    folder = tier.folder / "quarantine"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_new_process_finds_what_was_stored(tier: DiskTier, tmp_path: Path) -> None:
    tier.put(SEGMENT)
    again = DiskTier(tmp_path / "store", "model", fsync=True)
    assert again.get(SEGMENT.key) == SEGMENT
    assert again.used_bytes == tier.used_bytes == tier.path(SEGMENT.key).stat().st_size
    again.put(make_segment("b"))
    assert tier.get(make_key("b")) == make_segment("b")


def test_folders_and_files_are_private(tier: DiskTier, tmp_path: Path) -> None:
    tier.put(SEGMENT)
    tier.path(SEGMENT.key).write_bytes(b"bad")
    tier.get(SEGMENT.key)
    tier.put(SEGMENT)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("key", ["", "a" * 39, "A" * 40, "../" + "a" * 37, "g" * 40, "a" * 41])
def test_a_key_cannot_name_another_file(tier: DiskTier, key: str) -> None:
    with pytest.raises(ValueError, match="40 lower-case hex digits"):
        tier.get(key)


def damage(kind: str, raw: bytes) -> bytes:
    """The file's bytes after an accident."""
    middle = len(raw) // 2
    return {
        "empty": b"",
        "prefix only": raw[:20],
        "in the prefix": raw[:7],
        "in the header": raw[:60],
        "in the payload": raw[:middle],
        "last byte missing": raw[:-1],
        "one byte more": raw + b"\0",
        "flipped magic": bytes([raw[0] ^ 1]) + raw[1:],
        "flipped header": raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
        "flipped payload": raw[:middle] + bytes([raw[middle] ^ 128]) + raw[middle + 1 :],
        "zeroed block": raw[:middle] + bytes(64) + raw[middle + 64 :],
        "other key": b"".join(dump(make_segment("b"), "model")),
        "other model": b"".join(dump(SEGMENT, "another model")),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "truncated"),
        ("prefix only", "truncated"),
        ("in the prefix", "truncated"),
        ("in the header", "truncated"),
        ("in the payload", "truncated"),
        ("last byte missing", "truncated"),
        ("one byte more", "too-long"),
        ("flipped magic", "bad-magic"),
        ("flipped header", "header-checksum"),
        ("flipped payload", "checksum"),
        ("zeroed block", "checksum"),
        ("other key", "key-mismatch"),
        ("other model", "model-mismatch"),
    ],
)
def test_a_bad_file_is_set_aside_and_counts_as_missing(
    tier: DiskTier, kind: str, reason: str
) -> None:
    tier.put(SEGMENT)
    path = tier.path(SEGMENT.key)
    path.write_bytes(damage(kind, path.read_bytes()))
    assert tier.get(SEGMENT.key) is None
    assert not tier.contains(SEGMENT.key)
    [name] = quarantined(tier)
    assert name.startswith(SEGMENT.key)
    assert f".{reason}" in name
    assert list(tier.keys()) == []
    stats = tier.stats()
    assert (stats.quarantined, stats.misses, stats.segments) == (1, 1, 0)
    tier.put(SEGMENT)
    assert tier.get(SEGMENT.key) == SEGMENT


def test_quarantine_keeps_the_newest(tier: DiskTier) -> None:
    for _ in range(40):
        tier.put(SEGMENT)
        tier.path(SEGMENT.key).write_bytes(b"bad")
        assert tier.get(SEGMENT.key) is None
    assert len(quarantined(tier)) == 32


def test_deleting_reaches_quarantine(tier: DiskTier) -> None:
    tier.put(SEGMENT)
    tier.path(SEGMENT.key).write_bytes(b"bad")
    tier.get(SEGMENT.key)
    assert not tier.delete(SEGMENT.key)
    assert quarantined(tier) == []


def test_a_good_file_that_took_the_place_of_a_bad_one_stays(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferscale_sdk.tiers import files

    tier.put(SEGMENT)
    tier.path(SEGMENT.key).write_bytes(b"bad")
    plain_read = files.read

    def read_then_replace(path: Path) -> Any:
        answer = plain_read(path)
        tier.put(SEGMENT)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", read_then_replace)
        assert tier.get(SEGMENT.key) is None
    assert tier.get(SEGMENT.key) == SEGMENT
    assert quarantined(tier) == []


def test_models_and_ranks_do_not_see_each_other(tmp_path: Path) -> None:
    here = DiskTier(tmp_path, "model")
    others = [DiskTier(tmp_path, "model", rank=1), DiskTier(tmp_path, "model 2")]
    for tier in [here, *others]:
        tier.put(SEGMENT)
    here.delete(SEGMENT.key)
    assert [tier.contains(SEGMENT.key) for tier in others] == [True, True]
    here.put(SEGMENT)
    assert here.delete_everywhere(SEGMENT.key) == 3
    assert not any(tier.contains(SEGMENT.key) for tier in [here, *others])
    assert here.delete_everywhere(SEGMENT.key) == 0


def test_a_folder_that_vanished_is_made_again(tier: DiskTier, tmp_path: Path) -> None:
    import shutil

    tier.put(SEGMENT)
    shutil.rmtree(tmp_path / "store")
    assert tier.get(SEGMENT.key) is None
    assert not tier.delete(SEGMENT.key)
    assert list(tier.keys()) == []
    tier.put(SEGMENT)
    assert tier.get(SEGMENT.key) == SEGMENT
    tier.clear()
    shutil.rmtree(tmp_path / "store")
    tier.clear()


@pytest.mark.parametrize(
    ("code", "error", "way_out"),
    [
        (errno.ENOSPC, StoreFull, "free some space"),
        (errno.EDQUOT, StoreFull, "free some space"),
        (errno.EIO, StoreError, "Input/output error"),
    ],
)
def test_a_write_that_fails_half_way_leaves_what_was_there(
    tier: DiskTier,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: type[StoreError],
    way_out: str,
) -> None:
    tier.put(SEGMENT)
    plain_write, written = os.write, []

    def half_a_disk(descriptor: int, data: Any) -> int:
        if written:
            raise OSError(code, os.strerror(code))
        written.append(plain_write(descriptor, bytes(data)[:100]))
        return written[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_a_disk)
        with pytest.raises(error, match=way_out):
            tier.put(make_segment("a", n_tokens=9, variant=1))
    assert tier.get(SEGMENT.key) == SEGMENT
    assert [path.name for path in tier.path(SEGMENT.key).parent.iterdir()] == [
        tier.path(SEGMENT.key).name
    ]
    assert tier.stats().errors == 1


def test_a_file_that_cannot_be_read_is_missing(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferscale_sdk.tiers import files

    tier.put(SEGMENT)

    def broken(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", broken)
        assert tier.get(SEGMENT.key) is None
    assert tier.stats().errors == 1
    assert tier.get(SEGMENT.key) == SEGMENT


def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another folder"):
        DiskTier(tmp_path / "file", "model")


def test_foreign_files_are_left_alone(tier: DiskTier) -> None:
    tier.put(SEGMENT)
    notes = [tier.folder / "notes.txt", tier.path(SEGMENT.key).with_name("README")]
    for note in notes:
        note.write_text("mine")
    assert list(tier.keys()) == [SEGMENT.key]
    tier.clear()
    assert all(note.exists() for note in notes)


def test_two_tiers_on_one_folder_share_a_budget_by_and_by(tmp_path: Path) -> None:
    size = sum(len(piece) for piece in dump(SEGMENT, "model"))
    first = DiskTier(tmp_path, "model", capacity_bytes=4 * size + 64)
    second = DiskTier(tmp_path, "model", capacity_bytes=4 * size + 64)
    for i in range(4):
        first.put(make_segment(i))
    for i in range(10, 15):
        second.put(make_segment(i))
    # The fifth file made the second tier count, and it found the first one's files too.
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*.ifs"))
    assert on_disk == second.used_bytes <= 4 * size + 64


@pytest.mark.parametrize("key", ["../x", "", 7, None, b"a" * 40, "a" * 40 + "\n", "\0" * 40])
def test_odd_keys_are_refused_by_every_verb(tier: DiskTier, key: Any) -> None:
    for verb in (tier.get, tier.contains, tier.delete, tier.delete_everywhere):
        with pytest.raises(ValueError, match="40 lower-case hex digits"):
            verb(key)


@pytest.mark.parametrize("changes", [{"capacity_bytes": -1}, {"rank": -1}])
def test_negative_sizes_and_ranks_are_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="-1 must not be negative"):
        DiskTier(tmp_path / "store", "model", **changes)
    assert not (tmp_path / "store").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", ["pipe", "link", "link_to_pipe", "folder", "device"])
def test_only_ordinary_files_are_read(tier: DiskTier, tmp_path: Path, kind: str) -> None:
    tier.put(SEGMENT)
    path, elsewhere = tier.path(SEGMENT.key), tmp_path / "elsewhere"
    path.rename(elsewhere)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link_to_pipe":
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if kind == "link" else "/dev/zero")
    assert tier.get(SEGMENT.key) is None
    assert not tier.contains(SEGMENT.key)
    assert list(tier.keys()) == []
    again = DiskTier(tmp_path / "store", "model")
    assert (again.used_bytes, again.stats().segments) == (0, 0)
    assert tier.stats().errors == 1
    if kind != "folder":
        tier.put(SEGMENT)
        assert tier.get(SEGMENT.key) == SEGMENT
        assert elsewhere.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_among_the_temporary_files_does_not_block(tier: DiskTier, tmp_path: Path) -> None:
    tier.put(SEGMENT)
    pipe = tier.path(SEGMENT.key).with_name(".x.tmp")
    os.mkfifo(pipe)
    assert DiskTier(tmp_path / "store", "model").get(SEGMENT.key) == SEGMENT
    assert pipe.exists()
