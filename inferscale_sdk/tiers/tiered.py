"""Several tiers, one above the other, as one."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from inferscale_sdk.errors import StoreError, StoreFull
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.write_behind import WriteBehind

__all__ = ["TieredStore", "WritePolicy"]

logger = logging.getLogger(__name__)

WritePolicy: TypeAlias = Literal["through", "back"]
"""``through``: written to every tier before ``put`` returns. ``back``: to the top one, and to those
below by threads of their own."""


class TieredStore(Tier):
    """Reads from the first tier that has it; writes to all.

    A segment found below is promoted to the tiers above, except that what comes from a tier that
    keeps it in fewer bytes goes to no lasting tier of another storage dtype: there it would pass
    for exact. A deletion wins against a promotion or a write that is under way: what was deleted is
    not brought back.

    Args:
        host: The uppermost, fastest tier.
        lower: The tiers below it, faster ones first; ``None`` is passed over.
        write_policy: Whether ``put`` waits for the lower tiers.
    """

    name = "tiered"

    def __init__(
        self, host: Tier, *lower: Tier | None, write_policy: WritePolicy = "through"
    ) -> None:
        self.host = host
        below = [tier for tier in lower if tier is not None]
        if write_policy == "back":
            below = [WriteBehind(tier) for tier in below]
        self.tiers: tuple[Tier, ...] = (host, *below)
        self._under_way: Counter[str] = Counter()
        self._deleting: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._lock = threading.Lock()

    @property
    def lower(self) -> tuple[Tier, ...]:
        """The tiers below the uppermost one."""
        return self.tiers[1:]

    @property
    def disk(self) -> Tier | None:
        """The first tier below the uppermost one."""
        return self.tiers[1] if len(self.tiers) > 1 else None

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        segment = self.host.get(key)
        if not self.lower:
            return segment
        if segment is not None:
            # A promotion may be under way that a deletion has overtaken.
            return None if key in self._gone else segment
        with self._moving(key):
            with self._lock:
                if key in self._deleting:
                    self._gone.add(key)
            return self._get_below(key)

    @contextmanager
    def _moving(self, key: str) -> Iterator[None]:
        """While a segment is on its way into tiers, so that a deletion can overtake it."""
        with self._lock:
            self._under_way[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
                    self._gone.discard(key)

    def _get_below(self, key: str) -> Segment | None:
        for depth, tier in enumerate(self.tiers[1:], start=1):
            segment = tier.get(key)
            if segment is not None:
                return segment if self._promote(segment, tier, depth) else None
        return None

    def _promote(self, segment: Segment, source: Tier, depth: int) -> bool:
        """Put a segment into the tiers above ``depth``; false if it was deleted meanwhile."""
        if segment.key in self._gone:
            return False
        above = [tier for tier in self.tiers[:depth] if _may_hold(tier, source.storage)]
        for tier in above:
            try:
                tier.put(segment)
            except StoreError as error:
                logger.debug("segment %s is not promoted to %s: %s", segment.key, tier.name, error)
        if segment.key not in self._gone:
            return True
        # The deletion may have passed a tier before the promotion reached it.
        for tier in above:
            _delete(tier, segment.key)
        return False

    def put(self, segment: Segment) -> None:
        """Store in every tier.

        One that does not take it is passed over, with a line in the log, as long as another does;
        an older segment of that key leaves it.

        Raises:
            StoreFull: No tier took it, all for want of room.
            StoreError: No tier took it, one for another reason than space.
        """
        with self._moving(segment.key):
            with self._lock:
                self._gone.discard(segment.key)
            self._put(segment)
            if segment.key in self._gone:
                # The deletion may have passed a tier before the segment reached it.
                for tier in self.tiers:
                    _delete(tier, segment.key)

    def _put(self, segment: Segment) -> None:
        refused: list[tuple[Tier, StoreError]] = []
        for tier in self.tiers:
            try:
                tier.put(segment)
            except StoreError as error:
                refused.append((tier, error))
                if not (tier is self.host and isinstance(error, StoreFull) and self.lower):
                    logger.warning("segment %s is not in %s: %s", segment.key, tier.name, error)
        if len(refused) == len(self.tiers):
            worst = [error for _, error in refused if not isinstance(error, StoreFull)]
            raise worst[-1] if worst else refused[-1][1]
        for tier, _ in refused:
            if tier.contains(segment.key):
                _delete(tier, segment.key)

    def contains(self, key: str) -> bool:  # noqa: D102
        return any(tier.contains(key) for tier in self.tiers)

    def delete(self, key: str) -> bool:
        """Drop a segment from every tier, pinned or not.

        Raises:
            StoreError: It is there and cannot be removed from one tier; from the others it is.
        """
        return self._from_all(key, lambda tier: int(tier.delete(key))) > 0

    def delete_everywhere(self, key: str) -> int:  # noqa: D102
        return self._from_all(key, lambda tier: tier.delete_everywhere(key))

    def _from_all(self, key: str, delete: Callable[[Tier], int]) -> int:
        with self._lock:
            self._deleting[key] += 1
            if key in self._under_way:
                self._gone.add(key)
        removed, failed = 0, None
        try:
            for tier in self.tiers:
                try:
                    removed += delete(tier)
                except StoreError as error:
                    failed = failed or error
        finally:
            with self._lock:
                self._deleting[key] -= 1
                if not self._deleting[key]:
                    del self._deleting[key]
        if failed is not None:
            raise failed
        return removed

    def pin(self, keys: Iterable[str]) -> None:
        """Keep segments in the uppermost tier until released; see :meth:`HostTier.pin`."""
        top: Any = self.host
        top.pin(keys)

    def release(self, keys: Iterable[str]) -> None:
        """Undo one pin of each key; see :meth:`HostTier.release`."""
        top: Any = self.host
        top.release(keys)

    def keys(self) -> Iterator[str]:  # noqa: D102
        found: set[str] = set()
        for tier in self.tiers:
            found.update(tier.keys())
        return iter(found)

    @property
    def used_bytes(self) -> int:
        """Bytes in all tiers; a segment that lies in two counts twice."""
        return sum(tier.used_bytes for tier in self.tiers)

    @property
    def capacity_bytes(self) -> int | None:
        """All budgets together, ``None`` if one has no limit."""
        total = 0
        for tier in self.tiers:
            capacity = tier.capacity_bytes
            if capacity is None:
                return None
            total += capacity
        return total

    def stats(self) -> TierStats:
        """The store as a whole: hits in any tier, misses in all; see :meth:`tier_stats`."""
        if not self.lower:
            return self.host.stats()
        each = [tier.stats() for tier in self.tiers]
        last = each[-1]
        return TierStats(
            name=self.name,
            segments=max(stats.segments for stats in each),
            used_bytes=sum(stats.used_bytes for stats in each),
            capacity_bytes=self.capacity_bytes,
            hits=sum(stats.hits for stats in each),
            misses=last.misses,
            puts=max(stats.puts for stats in each),
            evictions=last.evictions,
            deletions=max(stats.deletions for stats in each),
            quarantined=sum(stats.quarantined for stats in each),
            errors=sum(stats.errors for stats in each),
            wrong_key=sum(stats.wrong_key for stats in each),
            read_bytes=sum(stats.read_bytes for stats in each),
            write_bytes=sum(stats.write_bytes for stats in each),
            read_seconds=sum(stats.read_seconds for stats in each),
            write_seconds=sum(stats.write_seconds for stats in each),
        )

    def tier_stats(self) -> dict[str, TierStats]:
        """Each tier's own contents and counters, by name."""
        return {tier.name: tier.stats() for tier in self.tiers}

    def clear(self) -> None:  # noqa: D102
        with self._lock:
            self._gone.update(self._under_way)
        for tier in self.tiers:
            tier.clear()

    def flush(self) -> None:
        """Wait until what was put before is written to every tier, or failed to be."""
        for tier in self.tiers:
            if isinstance(tier, WriteBehind):
                tier.flush()

    def close(self) -> None:
        """Write what waits, then close every tier."""
        for tier in self.tiers:
            tier.close()


def _may_hold(tier: Tier, storage: StorageDtype) -> bool:
    """Whether what comes from a tier of that storage dtype may go there."""
    return storage is StorageDtype.AS_CACHE or tier.in_memory or tier.storage is storage


def _delete(tier: Tier, key: str) -> None:
    try:
        tier.delete(key)
    except StoreError as error:
        logger.warning("segment %s is not removed from %s: %s", key, tier.name, error)
