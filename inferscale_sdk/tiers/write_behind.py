"""Writes that nobody waits for."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import replace

from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.meter import Meter

__all__ = ["WriteBehind"]

logger = logging.getLogger(__name__)


class WriteBehind(Tier):
    """Another tier, written to by a thread of its own, in the order of :meth:`put`.

    What waits to be written is found by :meth:`get`. A deletion wins over a write that waits or is
    under way. When too much waits, :meth:`put` waits, too, so nothing is lost for want of room. A
    write that fails is logged and counts as an error; its segment is then nowhere in this tier.

    Args:
        tier: The tier that is written to; closed with this one.
        max_segments: So many may wait.
        max_bytes: So much may wait; one segment always may.
    """

    def __init__(self, tier: Tier, *, max_segments: int = 1024, max_bytes: int = 256 << 20) -> None:
        self.tier = tier
        self._max_segments = max_segments
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[str, Segment] = OrderedDict()
        self._waiting_bytes = 0
        self._writing: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._meter = Meter()
        self._thread = threading.Thread(
            target=self._write_all, name=f"inferscale-write-{tier.name}", daemon=True
        )
        self._thread.start()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The wrapped tier's."""
        return self.tier.name

    @property
    def storage(self) -> StorageDtype:  # type: ignore[override]
        """The wrapped tier's."""
        return self.tier.storage

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the segments that wait to be written, or are being written."""
        return self._waiting_bytes

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        with self._changed:
            segment = self._waiting.get(key)
        if segment is None:
            return self.tier.get(key)
        self._meter.count("hits")
        return segment

    def put(self, segment: Segment) -> None:
        """Let it be written; waits only while too much else waits."""
        with self._changed:
            self._drop(segment.key)
            while self._is_full(segment.nbytes) and not self._closing:
                self._changed.wait()
            if self._closing:
                self._changed.notify_all()
            else:
                self._drop(segment.key)  # another one may have come meanwhile
                self._waiting[segment.key] = segment
                self._waiting_bytes += segment.nbytes
                self._changed.notify_all()
                return
        self.tier.put(segment)

    def contains(self, key: str) -> bool:  # noqa: D102
        with self._changed:
            if key in self._waiting:
                return True
        return self.tier.contains(key)

    def delete(self, key: str) -> bool:  # noqa: D102
        waited = self._cancel(key)
        return self.tier.delete(key) or waited

    def delete_everywhere(self, key: str) -> int:  # noqa: D102
        waited = self._cancel(key)
        return self.tier.delete_everywhere(key) or int(waited)

    def locate(self, keys: Collection[str]) -> set[str]:  # noqa: D102
        with self._changed:
            waiting = {key for key in keys if key in self._waiting}
        return waiting | self.tier.locate(keys)

    def keys(self) -> Iterator[str]:  # noqa: D102
        with self._changed:
            found = set(self._waiting)
        found.update(self.tier.keys())
        return iter(found)

    @property
    def used_bytes(self) -> int:
        """Of the wrapped tier; what waits is not in it yet."""
        return self.tier.used_bytes

    @property
    def capacity_bytes(self) -> int | None:  # noqa: D102
        return self.tier.capacity_bytes

    def stats(self) -> TierStats:
        """The wrapped tier's, with hits on what waits."""
        stats = self.tier.stats()
        hits = int(self._meter.snapshot().get("hits", 0))
        return replace(stats, hits=stats.hits + hits) if hits else stats

    def clear(self) -> None:  # noqa: D102
        with self._changed:
            for key in list(self._waiting):
                self._drop(key)
            while self._writing is not None:
                self._changed.wait()
        self.tier.clear()

    def flush(self) -> None:
        """Wait until all that was put before is written, or failed to be."""
        with self._changed:
            while self._waiting:
                self._changed.wait()

    def close(self) -> None:
        """Write what waits, then close the wrapped tier."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self.tier.close()

    def _is_full(self, nbytes: int) -> bool:
        waiting = len(self._waiting)
        too_large = self._waiting_bytes + nbytes > self._max_bytes
        return waiting >= self._max_segments or (waiting > 0 and too_large)

    def _drop(self, key: str) -> bool:
        segment = self._waiting.pop(key, None)
        if segment is None:
            return False
        self._waiting_bytes -= segment.nbytes
        self._changed.notify_all()
        return True

    def _cancel(self, key: str) -> bool:
        """Take a key out of the line, and wait if it is just being written."""
        with self._changed:
            waited = self._drop(key)
            while self._writing == key:
                self._changed.wait()
            return waited

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                key, segment = next(iter(self._waiting.items()))
                self._writing = key
            self._write(segment)
            with self._changed:
                self._writing = None
                # Another one of this key, or a deletion, may have taken its place meanwhile.
                if self._waiting.get(key) is segment:
                    self._drop(key)
                self._changed.notify_all()

    def _write(self, segment: Segment) -> None:
        try:
            self.tier.put(segment)
        except Exception as error:
            logger.warning("segment %s is not written to %s: %s", segment.key, self.name, error)
            self._drop_older(segment.key)

    def _drop_older(self, key: str) -> None:
        try:
            if self.tier.contains(key):
                self.tier.delete(key)
        except Exception as error:
            logger.warning("an older segment %s stays in %s: %s", key, self.name, error)
