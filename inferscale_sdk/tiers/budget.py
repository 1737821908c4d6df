"""Budgets of tiers whose segments lie outside this process and may be written by others, too."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferscale_sdk.errors import ConfigurationError, StoreFull
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.coding import Tag
from inferscale_sdk.tiers.meter import Meter
from inferscale_sdk.tiers.orders import Eviction, make_order
from inferscale_sdk.tiers.policies import ResidencyLedger

__all__ = ["Budget", "BudgetedTier", "Stored"]

# Evicting means listing everything; going a little below the budget makes that rare.
_LOW_WATER = 0.9


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment as a listing of the store shows it."""

    key: str
    nbytes: int
    used_at: float


class Budget:
    """Running totals, corrected by listings, and who must go when there is too much.

    Safe for several threads.

    Args:
        what: The tier's name, for messages.
        capacity_bytes: Budget of everything, ``None`` for no limit.
        owner_bytes: Budget of each owner, ``None`` for no limit.
        eviction: Who goes first.

    Raises:
        ConfigurationError: A budget is negative, or there is no such ``eviction``.
    """

    def __init__(
        self,
        what: str,
        capacity_bytes: int | None,
        owner_bytes: int | None = None,
        eviction: Eviction = "lru",
    ) -> None:
        for name, value in (("capacity_bytes", capacity_bytes), ("owner_bytes", owner_bytes)):
            if value is not None and value < 0:
                raise ConfigurationError(
                    f"{name}={value} must not be negative; None means no limit"
                )
        try:
            make_order(eviction)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._what = what
        self.capacity_bytes = capacity_bytes
        self.owner_bytes = owner_bytes
        self._eviction = eviction
        self._tags: dict[str, Tag] = {}
        self._owners: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self.used_bytes = 0
        self.segments = 0

    @property
    def is_limited(self) -> bool:
        """Whether anything can ever have to go."""
        return self.capacity_bytes is not None or self.owner_bytes is not None

    @property
    def wants_tags(self) -> bool:
        """Whether it matters whose a segment is or what it costs."""
        return self.owner_bytes is not None or (self._eviction != "lru" and self.is_limited)

    def check(self, key: str, nbytes: int, owner: str) -> None:
        """Make sure that a segment fits at all.

        Raises:
            StoreFull: It is larger than a whole budget.
        """
        limits = [("whole budget", self.capacity_bytes)]
        if owner:
            limits.append(("budget of each owner", self.owner_bytes))
        for name, limit in limits:
            if limit is not None and nbytes > limit:
                raise StoreFull(
                    f"segment {key} needs {nbytes} bytes, the {self._what} tier's {name} is "
                    f"{limit}; raise the budget"
                )

    def added(self, key: str, nbytes: int, replaced: int | None, tag: Tag) -> bool:
        """A segment was written over one of ``replaced`` bytes, or over none.

        Returns:
            Whether a budget may be exceeded now: list the store, and ask :meth:`victims`.
        """
        with self._lock:
            self.used_bytes = max(0, self.used_bytes + nbytes - (replaced or 0))
            self.segments += replaced is None
            if self.wants_tags:
                self._tags[key] = tag
            over = self.capacity_bytes is not None and self.used_bytes > self.capacity_bytes
            if tag.owner and self.owner_bytes is not None:
                self._owners[tag.owner] += nbytes - (replaced or 0)
                over = over or self._owners[tag.owner] > self.owner_bytes
            return over

    def dropped(self, key: str, nbytes: int) -> None:
        """A segment is gone. Totals never fall below zero, though others may have written it."""
        with self._lock:
            self.used_bytes = max(0, self.used_bytes - nbytes)
            self.segments = max(0, self.segments - 1)
            tag = self._tags.pop(key, None)
            if tag is not None and tag.owner in self._owners:
                self._owners[tag.owner] -= nbytes
                if self._owners[tag.owner] <= 0:
                    del self._owners[tag.owner]

    def knows(self, key: str) -> bool:
        """Whether the tag of ``key`` is known."""
        return key in self._tags

    def used_by(self, owner: str) -> int:
        """Bytes of one owner, as far as they are known."""
        return self._owners.get(owner, 0)

    def recount(self, found: Sequence[Stored], read_tag: Callable[[str], Tag]) -> Mapping[str, Tag]:
        """Take the totals from a listing.

        Args:
            found: The listing.
            read_tag: Asked for keys whose tags are not known.

        Returns:
            The tags of all that were found, if it matters what they are.
        """
        tags: dict[str, Tag] = {}
        if self.wants_tags:
            tags = {s.key: self._tags.get(s.key) or read_tag(s.key) for s in found}
        with self._lock:
            self.used_bytes = sum(stored.nbytes for stored in found)
            self.segments = len(found)
            self._tags = dict(tags)
            self._owners.clear()
            if self.owner_bytes is not None:
                for stored in found:
                    if owner := tags[stored.key].owner:
                        self._owners[owner] += stored.nbytes
            return tags

    def victims(
        self, found: Sequence[Stored], read_tag: Callable[[str], Tag], *, keep: str
    ) -> list[str]:
        """Take the totals from a listing, and choose who must go to be within every budget.

        Owners above their budget lose their own; only then is everything looked at.

        Args:
            found: The listing.
            read_tag: Asked for keys whose tags are not known.
            keep: The segment that was just written; it stays, and counts as used last.

        Returns:
            Keys to drop, first victim first.
        """
        tags = self.recount(found, read_tag)
        order = sorted(found, key=lambda stored: (stored.key == keep, stored.used_at))
        gone: list[str] = []
        if self.owner_bytes is not None:
            for owner, used in list(dict(self._owners).items()):
                if used > self.owner_bytes:
                    own = [s for s in order if tags[s.key].owner == owner]
                    gone += self._overflow(own, self.owner_bytes, tags)
        dropped = set(gone)
        rest = [stored for stored in order if stored.key not in dropped]
        limit = self.capacity_bytes
        if limit is not None and sum(stored.nbytes for stored in rest) > limit:
            gone += self._overflow(rest, limit, tags)
        return gone

    def _overflow(self, order: Sequence[Stored], limit: int, tags: Mapping[str, Tag]) -> list[str]:
        """Who is pushed out when segments come in one by one, in the order of their last use."""
        low_water = max(int(limit * _LOW_WATER), order[-1].nbytes)
        ledger = ResidencyLedger(low_water, eviction=self._eviction)
        gone: list[str] = []
        for one in order:
            tag = tags.get(one.key)
            try:
                gone += ledger.admit(one.key, one.nbytes, cost=tag.cost if tag else 1.0)
            except StoreFull:
                gone.append(one.key)
        return gone


class BudgetedTier(Tier):
    """A tier whose totals are kept here and corrected by listings, and which counts what it does.

    Args:
        capacity_bytes: Budget of everything, ``None`` for no limit.
        owner_bytes: Budget of each owner, ``None`` for no limit.
        eviction: Who goes first.

    Raises:
        ConfigurationError: A budget is negative, or there is no such ``eviction``.
    """

    def __init__(
        self, capacity_bytes: int | None, owner_bytes: int | None, eviction: Eviction
    ) -> None:
        self._budget = Budget(self.name, capacity_bytes, owner_bytes, eviction)
        self._meter = Meter()

    @property
    def used_bytes(self) -> int:
        """An estimate: what others write and remove counts from the next listing on."""
        return self._budget.used_bytes

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102 - as in the contract
        return self._budget.capacity_bytes

    def stats(self) -> TierStats:  # noqa: D102
        return TierStats(
            name=self.name,
            segments=self._budget.segments,
            used_bytes=self._budget.used_bytes,
            capacity_bytes=self._budget.capacity_bytes,
            **self._meter.snapshot(),
        )
