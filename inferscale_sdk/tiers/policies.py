"""Who stays when a tier is full. Bookkeeping only: no tensors, no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.tiers.orders import Eviction, EvictionOrder, make_order

__all__ = ["ResidencyLedger"]


@dataclass(slots=True)
class _Entry:
    nbytes: int
    owner: str
    cost: float
    uses: int = 1


@dataclass(slots=True)
class _Share:
    """What one owner has: part of everything resident, or everything."""

    order: EvictionOrder
    used_bytes: int = 0
    pinned_bytes: int = 0
    n_keys: int = 0


class ResidencyLedger:
    """What is resident in a byte budget. Pinned keys never go.

    Pins are counted per key and outlive :meth:`remove`: whoever pinned a key releases it once, be
    the key still there or not. Every operation is O(1) per key it names or returns, O(log n) with
    ``cost``. Not thread-safe: the owner holds a lock, or is one thread.

    Args:
        capacity_bytes: The budget, ``None`` for no limit.
        eviction: Who goes first, see :mod:`inferscale_sdk.tiers.orders`.
        owner_bytes: The budget of each owner, ``None`` for no limit. Who exceeds it loses segments
            of their own, and nobody else does.

    Raises:
        ValueError: A budget is negative, or there is no such ``eviction``.
    """

    def __init__(
        self,
        capacity_bytes: int | None,
        *,
        eviction: Eviction = "lru",
        owner_bytes: int | None = None,
    ) -> None:
        for name, value in (("capacity_bytes", capacity_bytes), ("owner_bytes", owner_bytes)):
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} must not be negative")
        self._capacity = capacity_bytes
        self._owner_bytes = owner_bytes
        self._eviction = eviction
        self._entries: dict[str, _Entry] = {}
        self._pins: dict[str, int] = {}
        self._all = _Share(make_order(eviction))
        self._shares: dict[str, _Share] = {}

    @property
    def capacity_bytes(self) -> int | None:
        """The budget, ``None`` for no limit."""
        return self._capacity

    @property
    def owner_bytes(self) -> int | None:
        """The budget of each owner, ``None`` for no limit."""
        return self._owner_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of everything resident; never above the budget."""
        return self._all.used_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of resident keys that are pinned."""
        return self._all.pinned_bytes

    def used_by(self, owner: str) -> int:
        """Bytes of one owner's resident keys; 0 where owners have no budget."""
        share = self._shares.get(owner)
        return share.used_bytes if share is not None else 0

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def admit(self, key: str, nbytes: int, *, owner: str = "", cost: float = 1.0) -> list[str]:
        """Make ``key`` resident with ``nbytes``, as the most recently used one.

        A resident key gets the new size.

        Args:
            key: The key.
            nbytes: Its size.
            owner: Whose budget it counts against; empty for nobody's.
            cost: What having it again costs, in tokens to compute.

        Returns:
            The victims, already taken off the ledger, first victim first. The caller drops them.

        Raises:
            StoreFull: It does not fit even without all that may go. The ledger is unchanged.
            ValueError: ``nbytes`` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes} must not be negative")
        self._check_room(key, nbytes, owner)
        self.remove(key)
        victims = self._evict(self._shares.get(owner), nbytes, self._owner_bytes)
        victims += self._evict(self._all, nbytes, self._capacity)
        entry = self._entries[key] = _Entry(nbytes, owner, cost)
        for share in self._shares_of(entry):
            share.n_keys += 1
            share.used_bytes += nbytes
            if key in self._pins:
                share.pinned_bytes += nbytes
            else:
                share.order.add(key, nbytes, cost, entry.uses)
        return victims

    def touch(self, key: str) -> None:
        """Note a use of ``key``; nothing happens if it is not resident."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.uses += 1
        if key not in self._pins:
            for share in self._shares_of(entry):
                share.order.touch(key)

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
            count = self._pins.get(key, 0)
            self._pins[key] = count + 1
            if count == 0:
                entry = self._entries[key]
                for share in self._shares_of(entry):
                    share.order.discard(key)
                    share.pinned_bytes += entry.nbytes

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
            entry = self._entries.get(key)
            if entry is not None:
                for share in self._shares_of(entry):
                    share.pinned_bytes -= entry.nbytes
                    share.order.add(key, entry.nbytes, entry.cost, entry.uses)

    def remove(self, key: str) -> bool:
        """Take ``key`` off, pinned or not; true if it was resident. Its pins stay counted."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        for share in self._shares_of(entry):
            share.n_keys -= 1
            share.used_bytes -= entry.nbytes
            if key in self._pins:
                share.pinned_bytes -= entry.nbytes
            else:
                share.order.discard(key)
        if entry.owner in self._shares and not self._shares[entry.owner].n_keys:
            del self._shares[entry.owner]
        return True

    def clear(self) -> None:
        """Take everything off. Pins stay counted."""
        self._entries.clear()
        self._shares.clear()
        self._all = _Share(make_order(self._eviction))

    def _shares_of(self, entry: _Entry) -> tuple[_Share, ...]:
        if self._owner_bytes is None or not entry.owner:
            return (self._all,)
        share = self._shares.get(entry.owner)
        if share is None:
            share = self._shares[entry.owner] = _Share(make_order(self._eviction))
        return (self._all, share)

    def _evict(self, share: _Share | None, nbytes: int, limit: int | None) -> list[str]:
        victims: list[str] = []
        while share is not None and limit is not None and share.used_bytes + nbytes > limit:
            victim = share.order.pop()
            self.remove(victim)
            victims.append(victim)
        return victims

    def _check_room(self, key: str, nbytes: int, owner: str) -> None:
        replaced = self._entries.get(key)
        freed = replaced.nbytes if replaced is not None and key in self._pins else 0
        self._check(key, nbytes, self._all.pinned_bytes - freed, self._capacity, "budget")
        if owner and self._owner_bytes is not None:
            share = self._shares.get(owner)
            pinned = share.pinned_bytes if share is not None else 0
            own = freed if replaced is not None and replaced.owner == owner else 0
            self._check(key, nbytes, pinned - own, self._owner_bytes, "budget of its owner")

    @staticmethod
    def _check(key: str, nbytes: int, pinned: int, limit: int | None, what: str) -> None:
        if limit is None or pinned + nbytes <= limit:
            return
        raise StoreFull(
            f"{key} needs {nbytes} bytes; {pinned} of {limit} are pinned by "
            "requests in progress; raise the budget or send fewer requests at once"
            if nbytes <= limit
            else f"{key} needs {nbytes} bytes, the whole {what} is {limit}; raise the budget"
        )
