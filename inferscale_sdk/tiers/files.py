"""What the disk tier does with files: names, atomic writes, quarantine, clean-up.

All functions let ``OSError`` through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferscale_sdk.tiers.names import SUFFIX, key_of, object_name, shard_name

if sys.platform != "win32":
    import fcntl

__all__ = [
    "ABANDONED_AFTER_SECONDS",
    "StoredFile",
    "create_locked",
    "entries",
    "is_segment_file",
    "make_private",
    "mark_used",
    "open_abandoned",
    "quarantine",
    "read",
    "read_head",
    "remove_abandoned",
    "remove_all_abandoned",
    "remove_quarantined",
    "scan",
    "segment_path",
    "shard_folder",
    "shard_folders",
    "trim_quarantine",
    "write_atomically",
]

_TEMPORARY = ".tmp"
_QUARANTINE = "quarantine"
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
# Where file locks do not work, a temporary file this old has no writer any more.
ABANDONED_AFTER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A segment's file as found in a folder."""

    key: str
    path: Path
    nbytes: int
    used_at_ns: int


def shard_folder(root: Path, fingerprint: str, rank: int, suffix: str = "") -> Path:
    """Where the segments of one model, rank and storage dtype lie."""
    return root / shard_name(fingerprint, rank, suffix)


def shard_folders(root: Path) -> list[Path]:
    """The folders of every model and rank under ``root``, none if there is no ``root``.

    One that may not be read is an error.
    """
    models = [Path(entry.path) for entry in entries(root) if entry.is_dir()]
    return [
        Path(entry.path)
        for model in models
        for entry in entries(model)
        if entry.name.startswith("r") and entry.is_dir()
    ]


def is_segment_file(path: Path) -> bool:
    """Whether an ordinary file lies there; anything else is none of ours."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def segment_path(folder: Path, key: str) -> Path:
    """Where a segment's file is or would be.

    Raises:
        ValueError: ``key`` is not 40 lower-case hex digits.
    """
    return folder / object_name("", key)[1:]


def make_private(folder: Path, root: Path) -> None:
    """Make ``folder`` and what is missing above it, each folder from ``root`` down with 0700."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        inside = path == root or root in path.parents
        path.mkdir(mode=_FOLDER_MODE if inside else 0o777, exist_ok=True)


def read(path: Path) -> tuple[bytearray, os.stat_result]:
    """A whole file in one read, and the state of the file that was read.

    Links are not followed, and whatever is no ordinary file is an ``OSError``: a pipe somebody put
    there would have the reader wait for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        opened = os.fstat(file.fileno())
        if not stat.S_ISREG(opened.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        buffer = bytearray(opened.st_size)
        view = memoryview(buffer)
        done = 0
        while done < len(buffer):
            n = file.readinto(view[done:])
            if not n:
                break  # shorter than its own size: the codec will say so
            done += n
    view.release()
    del buffer[done:]
    return buffer, opened


def read_head(path: Path, nbytes: int | None) -> bytes:
    """The first bytes of a file, all of them for ``None``."""
    if nbytes is None:
        return bytes(read(path)[0])
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        return file.read(nbytes)


def mark_used(path: Path) -> None:
    """Note a use of the file, for eviction."""
    with contextlib.suppress(OSError):
        os.utime(path)


def write_atomically(
    path: Path, pieces: Sequence[bytes | bytearray | memoryview], *, root: Path, fsync: bool
) -> int | None:
    """Write a file so that its name stands for all of it or for what was there before.

    Returns:
        The size of the file that was replaced, ``None`` if there was none.
    """
    for tries_left in (2, 1, 0):
        try:
            return _write(path, pieces, fsync=fsync)
        except FileNotFoundError:
            # The folder is not there yet, or somebody removed it, or the temporary file.
            if not tries_left:
                raise
            make_private(path.parent, root)
    raise AssertionError("unreachable")  # pragma: no cover


def _write(
    path: Path, pieces: Sequence[bytes | bytearray | memoryview], *, fsync: bool
) -> int | None:
    # Random, not the process id: two containers on one folder may have the same one.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{_TEMPORARY}")
    descriptor = create_locked(temporary)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        if fsync:
            os.fsync(descriptor)
        try:
            replaced = path.stat().st_size
        except FileNotFoundError:
            replaced = None
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    if fsync:
        _sync_folder(path.parent)
    return replaced


def create_locked(path: Path, *, append: bool = False) -> int:
    """Make a file to be written to, private and new, locked as long as it is open.

    The lock tells other processes, in other containers too, that the writer is alive.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (os.O_APPEND if append else 0)
    descriptor = os.open(path, flags, _FILE_MODE)
    with contextlib.suppress(OSError):
        _lock(descriptor)
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the file's lock without waiting; false if somebody holds it.

    Raises:
        OSError: There are no locks here.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def scan(folder: Path) -> Iterator[StoredFile]:
    """All segments' files in a folder; those that vanish meanwhile are left out."""
    for part in entries(folder):
        if len(part.name) != 2:
            continue
        for entry in entries(Path(part.path)):
            key = key_of(entry.name)
            if key is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                state = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(state.st_mode):
                    continue
                yield StoredFile(key, Path(entry.path), state.st_size, state.st_mtime_ns)


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, nothing if there is none."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_abandoned(
    folder: Path, key: str | None = None, *, older_than_seconds: float = 0.0, dry_run: bool = False
) -> int:
    """Remove temporary files whose writer is dead, of one key or all.

    Args:
        folder: A model's and rank's segments.
        key: Whose, ``None`` for all.
        older_than_seconds: Leave younger ones.
        dry_run: Only count.

    Returns:
        How many there were.
    """
    names = f"??/.*{_TEMPORARY}" if key is None else f"{key[:2]}/.{key}.*{_TEMPORARY}"
    before = time.time() - older_than_seconds
    return sum(_is_abandoned(path, before, remove=not dry_run) for path in folder.glob(names))


def remove_all_abandoned(
    root: Path, *, older_than_seconds: float = 0.0, dry_run: bool = False
) -> int:
    """The same under every model and rank."""
    return sum(
        remove_abandoned(folder, older_than_seconds=older_than_seconds, dry_run=dry_run)
        for folder in shard_folders(root)
    )


def _is_abandoned(path: Path, before: float, *, remove: bool) -> bool:
    descriptor = open_abandoned(path)
    if descriptor is None:
        return False
    try:
        if os.fstat(descriptor).st_mtime > before:
            return False
        if remove:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def open_abandoned(path: Path) -> int | None:
    """Open an ordinary file whose writer is dead; ``None`` if there is none, or it is alive.

    The file is locked by this call as long as it is open.
    """
    if not is_segment_file(path):
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    try:
        abandoned = _lock(descriptor)
    except OSError:  # a file system without locks
        abandoned = time.time() - os.fstat(descriptor).st_mtime > ABANDONED_AFTER_SECONDS
    if abandoned:
        return descriptor
    os.close(descriptor)
    return None


def quarantine(
    path: Path, opened: os.stat_result, reason: str, *, folder: Path, root: Path
) -> bool:
    """Set a bad file aside; false if another one has taken its place since it was read."""
    place = folder / _QUARANTINE
    make_private(place, root)
    slug = re.sub(r"[^a-z0-9]+", "-", reason.lower()).strip("-")[:60].rstrip("-")
    try:
        now = path.stat()
        if (now.st_ino, now.st_size) != (opened.st_ino, opened.st_size):
            return False
        path.rename(place / f"{path.stem}.{time.time_ns()}.{slug}{SUFFIX}")
    except FileNotFoundError:
        return False
    return True


def trim_quarantine(folder: Path, *, keep: int) -> None:
    """Remove all but the newest ``keep`` files from quarantine."""
    found = sorted(entries(folder / _QUARANTINE), key=_quarantined_at)
    for entry in found[: max(0, len(found) - keep)]:
        Path(entry.path).unlink(missing_ok=True)


def _quarantined_at(entry: os.DirEntry[str]) -> str:
    parts = entry.name.split(".")
    return parts[1] if len(parts) > 1 else ""


def remove_quarantined(folder: Path, key: str | None = None) -> None:
    """Remove what is in quarantine, of one key or all."""
    for entry in entries(folder / _QUARANTINE):
        if key is None or entry.name.startswith(key):
            Path(entry.path).unlink(missing_ok=True)
