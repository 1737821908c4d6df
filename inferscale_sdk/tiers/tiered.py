"""Host memory over disk, as one tier."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator

from inferscale_sdk.errors import StoreError, StoreFull
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.host import HostTier

__all__ = ["TieredStore"]

logger = logging.getLogger(__name__)


class TieredStore(Tier):
    """Reads from host memory, else from the lower tier; writes to both.

    A segment read from below is promoted to host memory. A deletion wins against a promotion that
    is under way: what was deleted is not brought back.

    Args:
        host: The fast tier.
        disk: The lower, lasting tier; ``None`` for host memory alone.
    """

    name = "tiered"

    def __init__(self, host: HostTier, disk: Tier | None = None) -> None:
        self.host = host
        self.disk = disk
        self._deletions = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        segment = self.host.get(key)
        if segment is not None or self.disk is None:
            return segment
        deletions = self._deletions
        segment = self.disk.get(key)
        if segment is None:
            return None
        with self._lock:
            if deletions != self._deletions and not self.disk.contains(key):
                return None
            try:
                self.host.put(segment)
            except StoreFull as error:
                logger.debug("segment %s stays on disk: %s", key, error)
        return segment

    def put(self, segment: Segment) -> None:
        """Store in both tiers.

        One that has no room is passed over, with a line in the log, as long as the other takes the
        segment.

        Raises:
            StoreFull: No tier took it.
            StoreError: No tier took it, the disk for another reason than space.
        """
        refused: StoreFull | None = None
        try:
            self.host.put(segment)
        except StoreFull as error:
            refused = error
        if self.disk is None:
            if refused is not None:
                raise refused
            return
        try:
            self.disk.put(segment)
        except StoreError as error:
            if refused is not None:
                raise
            logger.warning("segment %s is kept in memory only: %s", segment.key, error)

    def contains(self, key: str) -> bool:  # noqa: D102
        return self.host.contains(key) or (self.disk is not None and self.disk.contains(key))

    def delete(self, key: str) -> bool:
        """Drop a segment from both tiers, pinned or not."""
        with self._lock:
            self._deletions += 1
            in_host = self.host.delete(key)
            on_disk = self.disk is not None and self.disk.delete(key)
        return in_host or on_disk

    def pin(self, keys: Iterable[str]) -> None:
        """Keep segments in host memory until released; see :meth:`HostTier.pin`."""
        self.host.pin(keys)

    def release(self, keys: Iterable[str]) -> None:
        """Undo one pin of each key; see :meth:`HostTier.release`."""
        self.host.release(keys)

    def keys(self) -> Iterator[str]:  # noqa: D102
        found = set(self.host.keys())
        if self.disk is not None:
            found.update(self.disk.keys())
        return iter(found)

    @property
    def used_bytes(self) -> int:
        """Bytes in both tiers; a segment that lies in both counts twice."""
        return self.host.used_bytes + (self.disk.used_bytes if self.disk is not None else 0)

    @property
    def capacity_bytes(self) -> int | None:
        """Both budgets together, ``None`` if one has no limit."""
        host = self.host.capacity_bytes
        if self.disk is None or host is None:
            return host
        below = self.disk.capacity_bytes
        return None if below is None else host + below

    def stats(self) -> TierStats:
        """The store as a whole: hits in either tier, misses in both; see :meth:`tier_stats`."""
        host = self.host.stats()
        if self.disk is None:
            return host
        disk = self.disk.stats()
        return TierStats(
            name=self.name,
            segments=max(host.segments, disk.segments),
            used_bytes=host.used_bytes + disk.used_bytes,
            capacity_bytes=self.capacity_bytes,
            hits=host.hits + disk.hits,
            misses=disk.misses,
            puts=max(host.puts, disk.puts),
            evictions=disk.evictions,
            deletions=max(host.deletions, disk.deletions),
            quarantined=disk.quarantined,
            errors=disk.errors,
        )

    def tier_stats(self) -> dict[str, TierStats]:
        """Each tier's own contents and counters, by name."""
        tiers: list[Tier] = [self.host] if self.disk is None else [self.host, self.disk]
        return {tier.name: tier.stats() for tier in tiers}

    def clear(self) -> None:  # noqa: D102
        with self._lock:
            self._deletions += 1
            self.host.clear()
            if self.disk is not None:
                self.disk.clear()

    def close(self) -> None:  # noqa: D102
        self.host.close()
        if self.disk is not None:
            self.disk.close()
