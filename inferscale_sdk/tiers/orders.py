"""Who goes first. Orders of keys that may be evicted; bookkeeping only."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Literal, TypeAlias

__all__ = ["CostOrder", "Eviction", "EvictionOrder", "LRUOrder", "make_order"]

Eviction: TypeAlias = Literal["lru", "cost"]
"""``lru``: used longest ago first. ``cost``: cheapest to encode again first, with age."""


class EvictionOrder(ABC):
    """Keys in the order in which they are to go. Not thread-safe."""

    @abstractmethod
    def add(self, key: str, nbytes: int, cost: float, uses: int) -> None:
        """Put in a key that is not there, as the most recently used one.

        Args:
            key: The key.
            nbytes: What its leaving frees.
            cost: What having it again costs, in tokens to compute.
            uses: How often it has been used.
        """

    @abstractmethod
    def touch(self, key: str) -> None:
        """Note a use of a key that is there."""

    @abstractmethod
    def discard(self, key: str) -> None:
        """Take a key out, if it is there."""

    @abstractmethod
    def pop(self) -> str:
        """Take out the key that goes first.

        Raises:
            LookupError: There is none.
        """

    @abstractmethod
    def __contains__(self, key: object) -> bool:
        """Whether a key is there."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""


class LRUOrder(EvictionOrder):
    """The key used longest ago goes first. Everything is O(1)."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str, nbytes: int, cost: float, uses: int) -> None:  # noqa: D102
        del nbytes, cost, uses
        self._keys[key] = None

    def touch(self, key: str) -> None:  # noqa: D102
        self._keys.move_to_end(key)

    def discard(self, key: str) -> None:  # noqa: D102
        self._keys.pop(key, None)

    def pop(self) -> str:  # noqa: D102
        return self._keys.popitem(last=False)[0]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)


class CostOrder(EvictionOrder):
    """GreedyDual-Size with frequency: what is cheap to have again, large, or long unused goes.

    A key's rank is ``age + uses * cost / nbytes``; the lowest goes, and ``age`` becomes its rank.
    So a key that is not used sinks beneath those that are, however dear it once was. Among equal
    ranks the one that got its rank first goes, which makes this LRU where all cost the same per
    byte. O(log n) per use.
    """

    def __init__(self) -> None:
        self._age = 0.0
        self._serial = 0
        self._live: dict[str, tuple[float, int]] = {}
        self._worth: dict[str, tuple[float, int]] = {}  # cost per byte, uses
        self._heap: list[tuple[float, int, str]] = []

    def add(self, key: str, nbytes: int, cost: float, uses: int) -> None:  # noqa: D102
        self._worth[key] = (cost / max(nbytes, 1), uses)
        self._rank(key)

    def touch(self, key: str) -> None:  # noqa: D102
        per_byte, uses = self._worth[key]
        self._worth[key] = (per_byte, uses + 1)
        self._rank(key)

    def discard(self, key: str) -> None:  # noqa: D102
        if self._live.pop(key, None) is not None:
            del self._worth[key]

    def pop(self) -> str:  # noqa: D102
        while self._heap:
            rank, serial, key = heapq.heappop(self._heap)
            if self._live.get(key) == (rank, serial):
                self._age = rank
                self.discard(key)
                return key
        raise LookupError("there is no key to take out")

    def __contains__(self, key: object) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def _rank(self, key: str) -> None:
        per_byte, uses = self._worth[key]
        self._serial += 1
        self._live[key] = (self._age + uses * per_byte, self._serial)
        heapq.heappush(self._heap, (*self._live[key], key))
        # Ranks that no longer hold stay in the heap until they come up; not for ever, though.
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [(*rank, name) for name, rank in self._live.items()]
            heapq.heapify(self._heap)


def make_order(eviction: Eviction) -> EvictionOrder:
    """An empty order of that kind.

    Raises:
        ValueError: There is no such kind.
    """
    if eviction == "lru":
        return LRUOrder()
    if eviction == "cost":
        return CostOrder()
    raise ValueError(f"eviction={eviction!r} is not known; use 'lru' or 'cost'")
