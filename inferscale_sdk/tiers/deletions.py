"""Deletions from a store's folder, noted for other processes that hold the segments in memory.

Whoever deletes has a file of its own, ``<store>/forgotten/<author>.<random>.gone``, made with its
first deletion and locked as long as it lives. A record is the key and a line break. The others read
on from where they were.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from inferscale_sdk.errors import StoreError
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.names import is_key

__all__ = ["DeletionLog"]

logger = logging.getLogger(__name__)

_FOLDER, _SUFFIX = "forgotten", ".gone"
_RECORD_BYTES = 41
_KEPT_SECONDS = 30 * 86_400.0


class DeletionLog:
    """What was deleted from a folder. All methods may be called from several threads.

    Memory starts empty, so nothing is read of what was deleted before this was made.

    Args:
        root: The store's folder.
        author: Whose deletions are not told back: the same for all parts of one server. By default
            this object's.
        every_seconds: How often others' files are looked at.
    """

    def __init__(self, root: Path, *, author: str = "", every_seconds: float = 1.0) -> None:
        self._root, self._folder = root, root / _FOLDER
        author = author or secrets.token_hex(16)
        self._author = hashlib.blake2b(author.encode(), digest_size=8).hexdigest()
        self._every_seconds = every_seconds
        self._next_look = 0.0
        self._path = self._folder / f"{self._author}.{secrets.token_hex(8)}{_SUFFIX}"
        self._file: int | None = None
        self._read_to: dict[str, int] = {}
        self._fault = ""
        self._lock = threading.Lock()
        try:
            self._remove_old()
            for entry in self._others():
                n_whole = entry.stat().st_size // _RECORD_BYTES
                self._read_to[entry.name] = n_whole * _RECORD_BYTES
        except OSError as error:
            self._warn(error)

    def add(self, keys: Iterable[str]) -> None:
        """Note deletions that have been carried out: a read that begins later finds no file.

        Raises:
            StoreError: They cannot be written; others may go on using what they hold.
        """
        records = "".join(f"{key}\n" for key in keys).encode()
        if not records:
            return
        with self._lock:
            try:
                self._append(records)
            except OSError as error:
                raise StoreError(
                    f"a deletion cannot be noted in {self._folder}, so other servers on this "
                    f"folder are not told: {error}; free some space or mend its permissions, and "
                    "repeat it"
                ) from error

    def _append(self, records: bytes) -> None:
        if self._file is not None and not self._is_in_place(self._file):
            os.close(self._file)
            self._file = None
        if self._file is None:
            files.make_private(self._folder, self._root)
            self._file = files.create_locked(self._path, append=True)
        written = os.write(self._file, records)
        if written != len(records):
            # Half a record would put all later ones out of step.
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError("no space for it")

    def _is_in_place(self, file: int) -> bool:
        """Whether others find it: somebody may have removed or moved it, or the folder."""
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def unseen(self) -> set[str]:
        """Keys that others deleted since the last look; empty if that was a moment ago."""
        now = time.monotonic()
        if now < self._next_look:
            return set()
        with self._lock:
            self._next_look = now + self._every_seconds
            try:
                keys = set(self._read_on())
            except OSError as error:
                self._warn(error)
                return set()
        self._fault = ""
        return keys

    def _read_on(self) -> Iterator[str]:
        before, self._read_to = self._read_to, {}
        for entry in self._others():
            done = before.get(entry.name, 0)
            try:
                if entry.stat(follow_symlinks=False).st_size > done:
                    with Path(entry.path).open("rb") as file:
                        file.seek(done)
                        added = file.read()
                    whole = added[: len(added) // _RECORD_BYTES * _RECORD_BYTES]
                    done += len(whole)
                    yield from filter(is_key, whole.decode(errors="replace").splitlines())
            except FileNotFoundError:
                continue
            finally:
                self._read_to[entry.name] = done

    def _others(self) -> list[os.DirEntry[str]]:
        return [
            entry
            for entry in files.entries(self._folder)
            if entry.name.endswith(_SUFFIX)
            and not entry.name.startswith(f"{self._author}.")
            and entry.is_file(follow_symlinks=False)
        ]

    def _remove_old(self) -> None:
        """Remove files of dead processes that everybody has read long since."""
        before = time.time() - _KEPT_SECONDS
        for entry in self._others():
            if entry.stat().st_mtime > before:
                continue
            descriptor = files.open_abandoned(Path(entry.path))
            if descriptor is not None:
                Path(entry.path).unlink(missing_ok=True)
                os.close(descriptor)

    def _warn(self, error: OSError) -> None:
        if str(error) != self._fault:
            self._fault = str(error)
            logger.warning("what others deleted cannot be read in %s: %s", self._folder, error)

    def close(self) -> None:
        """Leave the file to those who have not read it yet."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
