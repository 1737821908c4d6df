"""Files: clean-up of dead writers' leavings, with and without file locks, and its races."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.testing.tier_suite import make_key
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.folder import locate as folder_locate

KEY = make_key("a")


def write(folder: Path, content: bytes = b"content") -> int | None:
    path = files.segment_path(folder, KEY)
    return files.write_atomically(path, [content], root=folder, fsync=False)


def leave_behind(folder: Path, age_seconds: float = 0.0) -> Path:
    """A temporary file as a killed writer leaves it."""
    path = folder / KEY[:2] / f".{KEY}.0123456789abcdef.tmp"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half")
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    return path


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has none."""
    if sys.platform == "win32":
        return
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_writing_tells_what_it_replaced(tmp_path: Path) -> None:
    assert write(tmp_path, b"123") is None
    assert write(tmp_path, b"12345") == 3
    assert files.read(files.segment_path(tmp_path, KEY))[0] == b"12345"


def test_a_dead_writers_file_is_removed_whatever_its_age(tmp_path: Path) -> None:
    half = leave_behind(tmp_path)
    write(tmp_path)
    assert files.remove_abandoned(tmp_path) == 1
    assert not half.exists()
    assert [found.key for found in files.scan(tmp_path)] == [KEY]


def test_only_what_is_asked_for_is_removed(tmp_path: Path) -> None:
    half = leave_behind(tmp_path, age_seconds=100)
    assert files.remove_abandoned(tmp_path, make_key("b")) == 0
    assert files.remove_abandoned(tmp_path, older_than_seconds=200) == 0
    assert files.remove_abandoned(tmp_path, older_than_seconds=50, dry_run=True) == 1
    assert half.exists()
    assert files.remove_abandoned(tmp_path, KEY, older_than_seconds=50) == 1
    assert not half.exists()


def test_a_living_writers_file_is_left_alone(tmp_path: Path) -> None:
    """Another server may share the folder."""
    half = leave_behind(tmp_path, age_seconds=7200)
    half.unlink()
    descriptor = files.create_locked(half)
    os.utime(half, (0, 0))
    assert files.remove_abandoned(tmp_path) == 0
    os.close(descriptor)
    assert files.remove_abandoned(tmp_path) == 1


@pytest.mark.usefixtures("no_locks")
def test_without_locks_age_decides_and_writing_works(tmp_path: Path) -> None:
    write(tmp_path)
    young = leave_behind(tmp_path, age_seconds=60)
    assert files.remove_abandoned(tmp_path) == 0
    assert young.exists()
    leave_behind(tmp_path, age_seconds=7200)
    assert files.remove_abandoned(tmp_path) == 1
    assert not young.exists()


def test_a_writer_whose_file_was_cleaned_away_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between creating a file and locking it, a writer looks dead."""
    plain_lock, cleaned = files._lock, []

    def too_late(descriptor: int) -> bool:
        if not cleaned:
            cleaned.extend(tmp_path.rglob("*.tmp"))
            for path in cleaned:
                path.unlink()
        return plain_lock(descriptor)

    monkeypatch.setattr(files, "_lock", too_late)
    write(tmp_path)
    assert len(cleaned) == 1
    assert files.read(files.segment_path(tmp_path, KEY))[0] == b"content"
    assert list(tmp_path.rglob("*.tmp")) == []


def test_many_small_writes_make_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_write = os.write

    def one_byte(descriptor: int, data: Any) -> int:
        return plain_write(descriptor, bytes(data)[:1])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", one_byte)
        path = files.segment_path(tmp_path, KEY)
        files.write_atomically(path, [b"ab", memoryview(b"cde")], root=tmp_path, fsync=True)
    assert path.read_bytes() == b"abcde"


def test_a_tier_cleans_up_after_every_model_and_a_deletion_after_its_key(tmp_path: Path) -> None:
    with DiskTier(tmp_path, "another model", rank=1) as other:
        half = leave_behind(other.folder)
    with DiskTier(tmp_path, "model") as tier:
        assert not half.exists()
        halves = [leave_behind(folder) for folder in (tier.folder, other.folder)]
        assert folder_locate(tmp_path, [KEY]) == {KEY: ("temporary",)}
        assert tier.delete_everywhere(make_key("b")) == 0
        assert all(path.exists() for path in halves)
        assert tier.delete_everywhere(KEY) == 0
        assert folder_locate(tmp_path, [KEY]) == {}


def test_parents_of_the_store_are_ordinary_folders(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    files.make_private(root / "model" / "r0", root)
    modes = [oct(path.stat().st_mode & 0o077) for path in (root.parent, root, root / "model")]
    assert modes[1:] == ["0o0", "0o0"]
    assert modes[0] != "0o0" or os.umask(os.umask(0o022)) & 0o077 == 0o077
