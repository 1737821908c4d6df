"""Deletions that a remote store owes, in a file: they outlive the process that was asked.

A process has one file at most, ``<digest of the address>.<random>.owed``, made with its first debt
and locked as long as the process lives. One that starts takes over the files of dead ones. A line
is ``+<key>`` for a deletion that is owed under every model and rank, ``-<key>`` for one that was
made up for.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.names import is_key

__all__ = ["DebtBook"]

logger = logging.getLogger(__name__)

_SUFFIX, _NEW = ".owed", ".new"


class DebtBook:
    """What one store owes, kept on disk. Used by one thread at a time.

    It never raises: a debt that cannot be written is logged, and lives as long as the process.

    Args:
        folder: Where the files are; made with the first debt. Several processes may share it.
        address: The store, without secrets.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._store = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        self._owed: dict[str, None] = {}
        self._path: Path | None = None
        self._file: int | None = None
        with self._logged("cannot be read"):
            self._take_over()

    @property
    def owed(self) -> tuple[str, ...]:
        """The keys, longest owed first."""
        return tuple(self._owed)

    def add(self, key: str) -> None:
        """A deletion is owed."""
        if key in self._owed:
            return
        self._owed[key] = None
        with self._logged("cannot be written"):
            self._write("+", key)

    def done(self, key: str) -> None:
        """It was made up for, or the key was stored anew."""
        if key not in self._owed:
            return
        del self._owed[key]
        with self._logged("cannot be written"):
            if self._owed:
                self._write("-", key)
            elif self._file is not None:
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Leave what is owed to the next process."""
        if self._file is None or self._path is None:
            return
        with self._logged("cannot be removed"):
            if not self._owed:
                self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _take_over(self) -> None:
        for path in self._folder.glob(f"{self._store}.*{_NEW}"):
            if (file := files.open_abandoned(path)) is not None:
                path.unlink(missing_ok=True)
                os.close(file)
        found = sorted(self._folder.glob(f"{self._store}.*{_SUFFIX}"))
        for path in found:
            file = files.open_abandoned(path)
            if file is None:
                continue
            for key in _read(file):
                self.add(key)
            path.unlink(missing_ok=True)
            os.close(file)

    def _write(self, sign: str, key: str) -> None:
        if self._file is None:
            self._path = self._folder / f"{self._store}.{secrets.token_hex(8)}{_SUFFIX}"
            files.make_private(self._folder, self._folder)
            # Locked before it can be found, so that nobody takes it over.
            unseen = self._path.with_suffix(_NEW)
            self._file = files.create_locked(unseen, append=True)
            unseen.rename(self._path)
        os.write(self._file, f"{sign}{key}\n".encode())

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            logger.warning("deletions owed by a remote store: %s %s: %s", self._folder, what, error)


def _read(file: int) -> list[str]:
    """The keys that are still owed; a line that was cut off counts for nothing."""
    owed: dict[str, None] = {}
    with os.fdopen(os.dup(file), "rb") as content:
        for line in content.read().decode(errors="replace").splitlines():
            sign, key = line[:1], line[1:]
            if not is_key(key):
                continue
            if sign == "+":
                owed[key] = None
            else:
                owed.pop(key, None)
    return list(owed)
