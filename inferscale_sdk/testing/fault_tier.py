"""A tier that fails on demand: disks that are full, slow or broken, remotes that are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats

__all__ = ["FaultTier", "Faults"]


@dataclass(frozen=True)
class Faults:
    """What goes wrong, until further notice.

    Args:
        get_error: Raised by ``get``. A tier must not raise there; a broken one may.
        put_error: Raised by ``put``.
        delete_error: Raised by ``delete``.
        get_delay_seconds: How long ``get`` takes longer.
        put_delay_seconds: How long ``put`` takes longer.
        lose: ``get`` finds nothing, though ``contains`` says it is there.
        swap: What ``get`` gives in place of what it found.
        before_get: Called with the key before the segment is read.
    """

    get_error: Exception | None = None
    put_error: Exception | None = None
    delete_error: Exception | None = None
    get_delay_seconds: float = 0.0
    put_delay_seconds: float = 0.0
    lose: bool = False
    swap: Callable[[Segment], Segment] | None = None
    before_get: Callable[[str], None] | None = None


class FaultTier(Tier):
    """Another tier, with faults.

    Whatever the wrapped tier has beyond the contract is reached through this one unchanged.

    Args:
        tier: The tier that does the work.
        faults: What goes wrong from the start.
    """

    def __init__(self, tier: Tier, faults: Faults | None = None) -> None:
        self.tier = tier
        self.faults = faults or Faults()
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The wrapped tier's."""
        return self.tier.name

    @contextmanager
    def failing(self, **faults: Any) -> Iterator[FaultTier]:
        """Faults for the length of a block; fields of :class:`Faults`."""
        kept, self.faults = self.faults, Faults(**faults)
        try:
            yield self
        finally:
            self.faults = kept

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        faults = self._called("get")
        if faults.before_get is not None:
            faults.before_get(key)
        time.sleep(faults.get_delay_seconds)
        if faults.get_error is not None:
            raise faults.get_error
        segment = None if faults.lose else self.tier.get(key)
        return faults.swap(segment) if segment is not None and faults.swap else segment

    def put(self, segment: Segment) -> None:  # noqa: D102
        faults = self._called("put")
        time.sleep(faults.put_delay_seconds)
        if faults.put_error is not None:
            raise faults.put_error
        self.tier.put(segment)

    def contains(self, key: str) -> bool:  # noqa: D102
        return self.tier.contains(key)

    def delete(self, key: str) -> bool:  # noqa: D102
        faults = self._called("delete")
        if faults.delete_error is not None:
            raise faults.delete_error
        return self.tier.delete(key)

    def delete_everywhere(self, key: str) -> int:  # noqa: D102
        faults = self._called("delete")
        if faults.delete_error is not None:
            raise faults.delete_error
        return self.tier.delete_everywhere(key)

    def keys(self) -> Iterator[str]:  # noqa: D102
        return self.tier.keys()

    @property
    def used_bytes(self) -> int:  # noqa: D102
        return self.tier.used_bytes

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102
        return self.tier.capacity_bytes

    def stats(self) -> TierStats:  # noqa: D102
        return self.tier.stats()

    def clear(self) -> None:  # noqa: D102
        self.tier.clear()

    def close(self) -> None:  # noqa: D102
        self.tier.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)

    def _called(self, name: str) -> Faults:
        with self._lock:
            self.calls[name] = self.calls.get(name, 0) + 1
        return self.faults
