"""Segments in files, one each, shared by any number of processes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from inferscale_sdk.errors import (
    CorruptSegment,
    StoreError,
    StoreFull,
    WrongKey,
)
from inferscale_sdk.kv.cipher import Cipher
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.budget import BudgetedTier, Stored
from inferscale_sdk.tiers.coding import Coder, Tag
from inferscale_sdk.tiers.deletions import DeletionLog
from inferscale_sdk.tiers.orders import Eviction

__all__ = ["DiskTier"]

logger = logging.getLogger(__name__)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAX_QUARANTINED = 32


class DiskTier(BudgetedTier):
    """A folder of segment files that several servers may share.

    A segment lies at ``root/<model>/r<rank>/<2 hex>/<key>.ifs``, where ``<model>`` is a digest of
    the fingerprint; ``r<rank>-<division>-<dtype>`` if the model is divided over ranks, and if it is
    stored in another dtype than the cache's. It is
    written to a temporary file beside its place and renamed, so that a name always stands for a
    whole file; a writer that dies leaves a temporary file, which the next tier opened on the
    folder removes, and a deletion everywhere of its key. Reading checks key, fingerprint and
    checksums; a file that fails goes to ``quarantine/`` with the reason in its name (the newest 32
    are kept) and counts as missing. A file that was encrypted with another key counts as missing,
    too, and stays where it is. Folders are private to the user (0700), files too (0600).

    With a budget, the files used longest ago are removed first (or the cheapest to encode again,
    see :mod:`inferscale_sdk.tiers.orders`). Use is noted in the file's
    modification time, so it is shared between processes, and approximate: two uses in one tick of
    the file system's clock are equal, and another process's writes count only at the next sweep.

    Args:
        root: The store's folder; made if it is not there.
        fingerprint: The model whose segments these are.
        capacity_bytes: Budget for this model and rank, ``None`` for no limit but the disk's.
        rank: This process's shard of the model.
        fsync: Whether :meth:`put` waits until the segment would survive a power cut. Without it a
            cut may lose or damage the newest files; checksums find those out.
        storage: How keys and values are stored.
        cipher: Encrypts the files; ``None`` stores them plain.
        eviction: Who goes first when the budget is exceeded.
        owner_bytes: Budget of each owner, ``None`` for no limit.
        division: How the model is divided over ranks; those of another division are not found.
        author: The server that this is a part of, so that its deletions are told to others only.

    Raises:
        ConfigurationError: A budget or ``rank`` is negative, or there is no such ``eviction``.
        StoreError: The folder cannot be made or listed.
    """

    name = "disk"

    def __init__(
        self,
        root: Path,
        fingerprint: str,
        *,
        capacity_bytes: int | None = None,
        rank: int = 0,
        fsync: bool = False,
        storage: StorageDtype = StorageDtype.AS_CACHE,
        cipher: Cipher | None = None,
        eviction: Eviction = "lru",
        owner_bytes: int | None = None,
        division: str = "",
        author: str = "",
    ) -> None:
        super().__init__(capacity_bytes, owner_bytes, eviction)
        self.storage = storage
        self._coder = Coder(fingerprint, storage, cipher, division, rank)
        self._root = Path(root)
        self._fsync = fsync
        self._folder = self._root / self._coder.shard
        self._sweeping = threading.Lock()
        try:
            files.make_private(self._folder, self._root)
            files.remove_abandoned(self._folder)
        except OSError as error:
            raise StoreError(
                f"the store folder {self._folder} cannot be used: {error}; "
                "choose another folder or mend its permissions"
            ) from error
        with contextlib.suppress(OSError):  # others' may be closed to this user
            files.remove_all_abandoned(self._root)
        self._budget.recount(self._listing(), self._read_tag)
        self.deletions = DeletionLog(self._root, author=author)
        """What others deleted from the folder; what is deleted here is noted there."""

    @property
    def root(self) -> Path:
        """The store's folder, with the segments of every model and rank."""
        return self._root

    @property
    def folder(self) -> Path:
        """Where this model's and rank's segments lie."""
        return self._folder

    def path(self, key: str) -> Path:
        """Where a segment's file is or would be.

        Raises:
            ValueError: ``key`` is not 40 lower-case hex digits.
        """
        return files.segment_path(self._folder, key)

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        path = self.path(key)
        with self._meter.reading() as read:
            try:
                buffer, opened = files.read(path)
            except FileNotFoundError:
                return None
            except OSError as error:
                logger.warning("segment %s cannot be read: %s", path, error)
                self._meter.count("errors")
                return None
            nbytes = len(buffer)
            try:
                segment = self._coder.decode(buffer, key)
            except WrongKey as error:
                logger.warning("segment file %s is left alone: %s", path, error)
                self._meter.count("wrong_key")
                return None
            except CorruptSegment as error:
                self._quarantine(path, opened, str(error))
                self._meter.count("quarantined")
                return None
            if self._budget.is_limited:
                files.mark_used(path)
            read.append(nbytes)
        return segment

    def put(self, segment: Segment) -> None:  # noqa: D102
        path = self.path(segment.key)
        with self._meter.writing() as written:
            pieces = self._coder.encode(segment)
            nbytes = sum(len(piece) for piece in pieces)
            self._budget.check(segment.key, nbytes, segment.owner)
            try:
                replaced = files.write_atomically(path, pieces, root=self._root, fsync=self._fsync)
            except OSError as error:
                self._meter.count("errors")
                raise _refusal(error, segment.key, nbytes, path) from error
            written.append(nbytes)
        tag = Tag(segment.owner, segment.encode_tokens)
        if self._budget.added(segment.key, nbytes, replaced, tag):
            self._make_room(keep=segment.key)

    def contains(self, key: str) -> bool:  # noqa: D102
        return files.is_segment_file(self.path(key))

    def delete(self, key: str) -> bool:
        """Drop a segment and any quarantined copy of it, for this model and rank."""
        removed = self._delete_own(key)
        self.deletions.add([key])
        return removed

    def _delete_own(self, key: str) -> bool:
        removed = self._remove(self.path(key))
        _remove_quarantined(self._folder, key)
        if removed:
            self._meter.count("deletions")
        return removed

    def delete_everywhere(self, key: str) -> int:
        """Drop a segment under every model, rank and storage dtype of the store's folder.

        For deletion that must reach what other servers left behind.
        """
        removed = int(self._delete_own(key))
        try:
            folders = files.shard_folders(self._root)
        except OSError as error:
            raise StoreError(f"{self._root} cannot be listed: {error}") from error
        for folder in folders:
            if folder != self._folder:
                removed += self._unlink(files.segment_path(folder, key)) is not None
                _remove_quarantined(folder, key)
            _remove_abandoned(folder, key)
        self.deletions.add([key])
        return removed

    def keys(self) -> Iterator[str]:  # noqa: D102
        return iter([entry.key for entry in files.scan(self._folder)])

    def clear(self) -> None:
        """Drop every segment of this model and rank, and what is in quarantine."""
        for entry in files.scan(self._folder):
            self._remove(entry.path)
        _remove_quarantined(self._folder)

    def close(self) -> None:  # noqa: D102
        self.deletions.close()

    def _listing(self) -> list[Stored]:
        return [
            Stored(entry.key, entry.nbytes, entry.used_at_ns / 1e9)
            for entry in files.scan(self._folder)
        ]

    def _read_tag(self, key: str) -> Tag:
        """What eviction wants to know of a file that somebody else wrote."""
        try:
            head = files.read_head(self.path(key), self._coder.head_bytes)
            return self._coder.tag(head, key)
        except (OSError, CorruptSegment, WrongKey):
            return Tag()  # of no use to this server: first to go

    def _unlink(self, path: Path) -> int | None:
        """Remove a file; its size, or ``None`` if it was not there."""
        try:
            nbytes = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error}") from error
        return nbytes

    def _remove(self, path: Path) -> bool:
        nbytes = self._unlink(path)
        if nbytes is None:
            return False
        self._budget.dropped(path.stem, nbytes)
        return True

    def _quarantine(self, path: Path, opened: os.stat_result, reason: str) -> None:
        logger.warning("segment file %s is set aside: %s", path, reason)
        try:
            moved = files.quarantine(path, opened, reason, folder=self._folder, root=self._root)
        except OSError as error:
            logger.warning("%s cannot be set aside: %s", path, error)
            return
        files.trim_quarantine(self._folder, keep=_MAX_QUARANTINED)
        if moved:
            self._budget.dropped(path.stem, opened.st_size)

    def _make_room(self, keep: str) -> None:
        """Evict until every budget is kept, and a little more."""
        with self._sweeping:
            for key in self._budget.victims(self._listing(), self._read_tag, keep=keep):
                if self._remove(self.path(key)):
                    self._meter.count("evictions")


def _refusal(error: OSError, key: str, nbytes: int, path: Path) -> StoreError:
    """What :meth:`DiskTier.put` raises when a file cannot be written."""
    full = error.errno in _NO_SPACE
    return (StoreFull if full else StoreError)(
        f"segment {key} ({nbytes} bytes) cannot be written to {path.parent}: {error}; "
        + ("free some space or move the store" if full else "see the cause")
    )


def _remove_abandoned(folder: Path, key: str) -> None:
    try:
        files.remove_abandoned(folder, key)
    except OSError as error:
        raise StoreError(f"what a dead writer left in {folder} stays there: {error}") from error


def _remove_quarantined(folder: Path, key: str | None = None) -> None:
    try:
        files.remove_quarantined(folder, key)
    except OSError as error:
        raise StoreError(f"a damaged copy in {folder} cannot be removed: {error}") from error
