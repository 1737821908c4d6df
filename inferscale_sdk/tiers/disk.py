"""Segments in files, one each, shared by any number of processes."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from inferscale_sdk.errors import ConfigurationError, CorruptSegment, StoreError, StoreFull
from inferscale_sdk.kv.codec import dump, load
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.base import Tier, TierStats

__all__ = ["DiskTier"]

logger = logging.getLogger(__name__)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Evicting means listing all files; going a little below the budget makes that rare.
_LOW_WATER = 0.9
_MAX_QUARANTINED = 32


class DiskTier(Tier):
    """A folder of segment files that several servers may share.

    A segment lies at ``root/<model>/r<rank>/<2 hex>/<key>.ifs``, where ``<model>`` is a digest of
    the fingerprint. It is written to a temporary file beside its place and renamed, so that a name
    always stands for a whole file; a writer that dies leaves a temporary file, which the next tier
    opened on the folder removes. Reading checks key, fingerprint and checksums; a file that fails
    goes to ``quarantine/`` with the reason in its name (the newest 32 are kept) and counts as
    missing. Folders are private to the user (0700), files too (0600).

    With a budget, the files used longest ago are removed first. Use is noted in the file's
    modification time, so it is shared between processes, and approximate: two uses in one tick of
    the file system's clock are equal, and another process's writes count only at the next sweep.

    Args:
        root: The store's folder; made if it is not there.
        fingerprint: The model whose segments these are.
        capacity_bytes: Budget for this model and rank, ``None`` for no limit but the disk's.
        rank: This process's shard of the model.
        fsync: Whether :meth:`put` waits until the segment would survive a power cut. Without it a
            cut may lose or damage the newest files; checksums find those out.

    Raises:
        ConfigurationError: ``capacity_bytes`` or ``rank`` is negative.
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
    ) -> None:
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ConfigurationError(
                f"capacity_bytes={capacity_bytes} must not be negative; None means no limit"
            )
        if rank < 0:
            raise ConfigurationError(f"rank={rank} must not be negative; ranks count from 0")
        self._root = Path(root)
        self._fingerprint = fingerprint
        self._capacity = capacity_bytes
        self._fsync = fsync
        self._folder = files.shard_folder(self._root, fingerprint, rank)
        self._count: Counter[str] = Counter()
        self._used = 0
        self._segments = 0
        self._lock = threading.Lock()
        self._sweeping = threading.Lock()
        try:
            files.make_private(self._folder, self._root)
            files.remove_abandoned(self._folder)
        except OSError as error:
            raise StoreError(
                f"the store folder {self._folder} cannot be used: {error}; "
                "choose another folder or mend its permissions"
            ) from error
        self._recount()

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
        try:
            buffer, opened = files.read(path)
        except FileNotFoundError:
            self._counted("misses")
            return None
        except OSError as error:
            logger.warning("segment %s cannot be read: %s", path, error)
            self._counted("misses", "errors")
            return None
        try:
            segment = load(buffer, expect_key=key, expect_fingerprint=self._fingerprint)
        except CorruptSegment as error:
            self._quarantine(path, opened, str(error))
            self._counted("misses", "quarantined")
            return None
        if self._capacity is not None:
            files.mark_used(path)
        self._counted("hits")
        return segment

    def put(self, segment: Segment) -> None:  # noqa: D102
        path = self.path(segment.key)
        pieces = dump(segment, self._fingerprint)
        nbytes = sum(len(piece) for piece in pieces)
        if self._capacity is not None and nbytes > self._capacity:
            raise StoreFull(
                f"segment {segment.key} needs {nbytes} bytes, the disk tier's whole budget is "
                f"{self._capacity}; raise the budget"
            )
        try:
            replaced = files.write_atomically(path, pieces, root=self._root, fsync=self._fsync)
        except OSError as error:
            self._counted("errors")
            full = error.errno in _NO_SPACE
            raise (StoreFull if full else StoreError)(
                f"segment {segment.key} ({nbytes} bytes) cannot be written to {path.parent}: "
                f"{error}; " + ("free some space or move the store" if full else "see the cause")
            ) from error
        with self._lock:
            self._count["puts"] += 1
            self._used += nbytes - (replaced or 0)
            self._segments += replaced is None
        self._make_room(keep=path)

    def contains(self, key: str) -> bool:  # noqa: D102
        return files.is_segment_file(self.path(key))

    def delete(self, key: str) -> bool:
        """Drop a segment and any quarantined copy of it, for this model and rank."""
        removed = self._remove(self.path(key))
        files.remove_quarantined(self._folder, key)
        self._counted(*["deletions"] * removed)
        return removed

    def delete_everywhere(self, key: str) -> int:
        """Drop a segment under every model and rank of the store's folder, this one's included.

        For deletion that must reach what other servers left behind. Returns how many there were.

        Raises:
            StoreError: One is there and cannot be removed.
        """
        removed = int(self.delete(key))
        for folder in files.shard_folders(self._root):
            if folder != self._folder:
                removed += self._unlink(files.segment_path(folder, key)) is not None
                files.remove_quarantined(folder, key)
        return removed

    def keys(self) -> Iterator[str]:  # noqa: D102
        return iter([entry.key for entry in files.scan(self._folder)])

    @property
    def used_bytes(self) -> int:  # noqa: D102
        return self._used

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102
        return self._capacity

    def stats(self) -> TierStats:  # noqa: D102
        with self._lock:
            return TierStats(
                name=self.name,
                segments=self._segments,
                used_bytes=self._used,
                capacity_bytes=self._capacity,
                **self._count,
            )

    def clear(self) -> None:
        """Drop every segment of this model and rank, and what is in quarantine."""
        for entry in files.scan(self._folder):
            self._remove(entry.path)
        files.remove_quarantined(self._folder)

    def _counted(self, *names: str) -> None:
        with self._lock:
            self._count.update(names)

    def _recount(self) -> None:
        found = list(files.scan(self._folder))
        with self._lock:
            self._used = sum(entry.nbytes for entry in found)
            self._segments = len(found)

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
        self._dropped(nbytes)
        return True

    def _dropped(self, nbytes: int) -> None:
        with self._lock:  # never below zero, though another process may have written the file
            self._used = max(0, self._used - nbytes)
            self._segments = max(0, self._segments - 1)

    def _quarantine(self, path: Path, opened: os.stat_result, reason: str) -> None:
        logger.warning("segment file %s is set aside: %s", path, reason)
        try:
            moved = files.quarantine(path, opened, reason, folder=self._folder, root=self._root)
        except OSError as error:
            logger.warning("%s cannot be set aside: %s", path, error)
            return
        files.trim_quarantine(self._folder, keep=_MAX_QUARANTINED)
        if moved:
            self._dropped(opened.st_size)

    def _make_room(self, keep: Path) -> None:
        """Evict down to the low-water mark if the budget is exceeded."""
        if self._capacity is None or self._used <= self._capacity:
            return
        with self._sweeping:
            self._recount()
            if self._used <= self._capacity:
                return
            for entry in sorted(files.scan(self._folder), key=lambda found: found.used_at_ns):
                if self._used <= self._capacity * _LOW_WATER:
                    break
                if entry.path != keep and self._remove(entry.path):
                    self._counted("evictions")
