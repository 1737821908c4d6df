"""Who stays when a tier is full. Bookkeeping only: no tensors, no files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from inferscale_sdk.errors import StoreFull

__all__ = ["ResidencyLedger"]


class ResidencyLedger:
    """What is resident in a byte budget, least recently used first out, pinned ones never.

    Pins are counted per key and outlive :meth:`remove`: whoever pinned a key releases it once, be
    the key still there or not. Every operation is O(1) per key it names or returns. Not
    thread-safe: the owner holds a lock, or is one thread.

    Args:
        capacity_bytes: The budget, ``None`` for no limit.

    Raises:
        ValueError: The budget is negative.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"capacity_bytes={capacity_bytes} must not be negative")
        self._capacity = capacity_bytes
        self._evictable: OrderedDict[str, int] = OrderedDict()  # oldest use first
        self._pinned: dict[str, int] = {}
        self._pins: dict[str, int] = {}
        self._evictable_bytes = 0
        self._pinned_bytes = 0

    @property
    def capacity_bytes(self) -> int | None:
        """The budget, ``None`` for no limit."""
        return self._capacity

    @property
    def used_bytes(self) -> int:
        """Bytes of everything resident; never above the budget."""
        return self._evictable_bytes + self._pinned_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of resident keys that are pinned."""
        return self._pinned_bytes

    def __contains__(self, key: object) -> bool:
        return key in self._evictable or key in self._pinned

    def __len__(self) -> int:
        return len(self._evictable) + len(self._pinned)

    def __iter__(self) -> Iterator[str]:
        yield from self._pinned
        yield from self._evictable

    def admit(self, key: str, nbytes: int) -> list[str]:
        """Make ``key`` resident with ``nbytes``, as the most recently used one.

        A resident key gets the new size.

        Returns:
            The victims, already taken off the ledger, oldest use first. The caller drops them.

        Raises:
            StoreFull: It does not fit even without all that may go. The ledger is unchanged.
            ValueError: ``nbytes`` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes} must not be negative")
        self._check_room(key, nbytes)
        self.remove(key)
        victims: list[str] = []
        while self._capacity is not None and self.used_bytes + nbytes > self._capacity:
            victim, size = self._evictable.popitem(last=False)
            self._evictable_bytes -= size
            victims.append(victim)
        self._insert(key, nbytes)
        return victims

    def touch(self, key: str) -> None:
        """Note a use of ``key``; nothing happens if it is not resident."""
        if key in self._evictable:
            self._evictable.move_to_end(key)

    def pin(self, keys: Iterable[str]) -> None:
        """Keep ``keys`` resident until released as often as pinned. All or none.

        Raises:
            KeyError: One is not resident.
        """
        wanted = list(keys)
        absent = [key for key in wanted if key not in self]
        if absent:
            raise KeyError(f"{len(absent)} of {len(wanted)} keys are not resident: {absent[:3]}")
        for key in wanted:
            self._pins[key] = self._pins.get(key, 0) + 1
            size = self._evictable.pop(key, None)
            if size is not None:
                self._evictable_bytes -= size
                self._pinned[key] = size
                self._pinned_bytes += size

    def release(self, keys: Iterable[str]) -> None:
        """Undo one pin of each key; one without pins left may be evicted, most recent use now.

        Raises:
            KeyError: One is not pinned. Those before it have been released.
        """
        for key in keys:
            count = self._pins.get(key, 0)
            if count == 0:
                raise KeyError(f"{key} is released more often than it was pinned")
            if count > 1:
                self._pins[key] = count - 1
                continue
            del self._pins[key]
            size = self._pinned.pop(key, None)
            if size is not None:
                self._pinned_bytes -= size
                self._insert(key, size)

    def remove(self, key: str) -> bool:
        """Take ``key`` off, pinned or not; true if it was resident. Its pins stay counted."""
        size = self._evictable.pop(key, None)
        if size is not None:
            self._evictable_bytes -= size
            return True
        size = self._pinned.pop(key, None)
        if size is not None:
            self._pinned_bytes -= size
            return True
        return False

    def clear(self) -> None:
        """Take everything off. Pins stay counted."""
        self._evictable.clear()
        self._pinned.clear()
        self._evictable_bytes = self._pinned_bytes = 0

    def _insert(self, key: str, nbytes: int) -> None:
        if key in self._pins:
            self._pinned[key] = nbytes
            self._pinned_bytes += nbytes
        else:
            self._evictable[key] = nbytes
            self._evictable_bytes += nbytes

    def _check_room(self, key: str, nbytes: int) -> None:
        if self._capacity is None:
            return
        immovable = self._pinned_bytes - self._pinned.get(key, 0)
        if immovable + nbytes > self._capacity:
            raise StoreFull(
                f"{key} needs {nbytes} bytes; {immovable} of {self._capacity} are pinned by "
                "requests in progress; raise the budget or send fewer requests at once"
                if nbytes <= self._capacity
                else f"{key} needs {nbytes} bytes, the whole budget is {self._capacity}; "
                "raise the budget"
            )
