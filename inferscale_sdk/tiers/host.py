"""Segments in this process's memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.policies import ResidencyLedger

__all__ = ["HostTier"]


class HostTier(Tier):
    """A dictionary with a byte budget; the least recently used segment goes first.

    Args:
        capacity_bytes: The budget, ``None`` for no limit.
    """

    name = "host"

    def __init__(self, capacity_bytes: int | None) -> None:
        self._ledger = ResidencyLedger(capacity_bytes)
        self._segments: dict[str, Segment] = {}
        self._count: Counter[str] = Counter()
        self._lock = threading.Lock()

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        with self._lock:
            segment = self._segments.get(key)
            self._count["misses" if segment is None else "hits"] += 1
            self._ledger.touch(key)
            return segment

    def put(self, segment: Segment) -> None:  # noqa: D102
        with self._lock:
            victims = self._ledger.admit(segment.key, segment.nbytes)
            for victim in victims:
                del self._segments[victim]
            self._segments[segment.key] = segment
            self._count["evictions"] += len(victims)
            self._count["puts"] += 1

    def contains(self, key: str) -> bool:  # noqa: D102
        with self._lock:
            return key in self._segments

    def delete(self, key: str) -> bool:
        """Drop a segment, pinned or not."""
        with self._lock:
            there = self._segments.pop(key, None) is not None
            self._ledger.remove(key)
            self._count["deletions"] += there
            return there

    def pin(self, keys: Iterable[str]) -> None:
        """Keep segments from eviction until released as often; all or none.

        Raises:
            KeyError: One is not here.
        """
        with self._lock:
            self._ledger.pin(keys)

    def release(self, keys: Iterable[str]) -> None:
        """Undo one pin of each key.

        Raises:
            KeyError: One is not pinned.
        """
        with self._lock:
            self._ledger.release(keys)

    def keys(self) -> Iterator[str]:  # noqa: D102
        with self._lock:
            return iter(list(self._segments))

    @property
    def used_bytes(self) -> int:  # noqa: D102
        return self._ledger.used_bytes

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102
        return self._ledger.capacity_bytes

    def stats(self) -> TierStats:  # noqa: D102
        with self._lock:
            return TierStats(
                name=self.name,
                segments=len(self._segments),
                used_bytes=self._ledger.used_bytes,
                capacity_bytes=self._ledger.capacity_bytes,
                **self._count,
            )

    def clear(self) -> None:  # noqa: D102
        with self._lock:
            self._segments.clear()
            self._ledger.clear()
