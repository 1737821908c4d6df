"""Segments in this process's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from inferscale_sdk.errors import StoreError
from inferscale_sdk.kv.rows import Lent
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.meter import Meter
from inferscale_sdk.tiers.orders import Eviction
from inferscale_sdk.tiers.policies import ResidencyLedger
from inferscale_sdk.tiers.shelves import PlainShelf, Shelf

__all__ = ["HostTier"]


class HostTier(Tier):
    """A shelf with a byte budget; by default the least recently used segment goes first.

    Args:
        capacity_bytes: The budget, ``None`` for no limit.
        eviction: Who goes first.
        owner_bytes: Budget of each owner, ``None`` for no limit.
        shelf: How segments lie in memory; by default as they are. This tier's alone.
    """

    name = "host"
    in_memory = True

    def __init__(
        self,
        capacity_bytes: int | None,
        *,
        eviction: Eviction = "lru",
        owner_bytes: int | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self._ledger = ResidencyLedger(capacity_bytes, eviction=eviction, owner_bytes=owner_bytes)
        self._shelf = PlainShelf() if shelf is None else shelf
        self._meter = Meter()
        self._lock = threading.Lock()

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        with self._lock, self._meter.reading() as read:
            if key not in self._shelf:
                return None
            segment = self._shelf[key]
            self._ledger.touch(key)
            read.append(self._shelf.size_of(segment))
            return segment

    def lend(self, key: str) -> Lent | None:
        """The same without copying anything; pinned if it is there, until the caller releases it.

        What is lent holds the segment until then, or until the key is deleted or put anew.
        """
        with self._lock, self._meter.reading() as read:
            if key not in self._shelf:
                return None
            lent = self._shelf.lend(key)
            self._ledger.touch(key)
            self._ledger.pin([key])
            read.append(lent.nbytes)
            return lent

    def put(self, segment: Segment) -> None:  # noqa: D102
        key = segment.key
        with self._lock, self._meter.writing() as written:
            nbytes = self._shelf.size_of(segment)
            victims = self._ledger.admit(
                key, nbytes, owner=segment.owner, cost=segment.encode_tokens
            )
            for victim in victims:
                del self._shelf[victim]
            self._meter.add({"evictions": len(victims)})
            try:
                self._shelf[key] = segment
            except StoreError:
                self._ledger.remove(key)
                raise
            written.append(nbytes)

    def contains(self, key: str) -> bool:  # noqa: D102
        with self._lock:
            return key in self._shelf

    def delete(self, key: str) -> bool:
        """Drop a segment, pinned or not."""
        with self._lock:
            self._ledger.remove(key)
            if key not in self._shelf:
                return False
            del self._shelf[key]
            self._meter.count("deletions")
            return True

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
            return iter(list(self._shelf))

    @property
    def used_bytes(self) -> int:  # noqa: D102
        return self._ledger.used_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of pinned segments."""
        return self._ledger.pinned_bytes

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102
        return self._ledger.capacity_bytes

    def used_by(self, owner: str) -> int:
        """Bytes of one owner; 0 where owners have no budget."""
        return self._ledger.used_by(owner)

    def stats(self) -> TierStats:  # noqa: D102
        with self._lock:
            return TierStats(
                name=self.name,
                segments=len(self._shelf),
                used_bytes=self._ledger.used_bytes,
                capacity_bytes=self._ledger.capacity_bytes,
                **self._meter.snapshot(),
            )

    def clear(self) -> None:  # noqa: D102
        with self._lock:
            self._shelf.clear()
            self._ledger.clear()
