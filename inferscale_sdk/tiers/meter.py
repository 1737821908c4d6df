"""Counting what a tier does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Meter"]


class Meter:
    """Counters of one tier, by the names of :class:`~inferscale_sdk.tiers.base.TierStats`.

    Safe for several threads.
    """

    def __init__(self) -> None:
        self._count: dict[str, Any] = {}
        self._lock = threading.Lock()

    def count(self, *names: str) -> None:
        """Add one to each counter."""
        self.add(dict.fromkeys(names, 1))

    def add(self, by: dict[str, float]) -> None:
        """Add to several counters at once."""
        with self._lock:
            for name, value in by.items():
                self._count[name] = self._count.get(name, 0) + value

    @contextmanager
    def reading(self) -> Iterator[list[int]]:
        """Around a ``get``: a hit if bytes are put into the list, else a miss."""
        started, nbytes = time.perf_counter(), list[int]()
        try:
            yield nbytes
        finally:
            if nbytes:
                seconds = time.perf_counter() - started
                self.add({"hits": 1, "read_bytes": sum(nbytes), "read_seconds": seconds})
            else:
                self.count("misses")

    @contextmanager
    def writing(self) -> Iterator[list[int]]:
        """Around a ``put``: counted if it does not raise and bytes are put into the list."""
        started, nbytes = time.perf_counter(), list[int]()
        yield nbytes
        if nbytes:
            seconds = time.perf_counter() - started
            self.add({"puts": 1, "write_bytes": sum(nbytes), "write_seconds": seconds})

    def snapshot(self) -> dict[str, Any]:
        """All counters that were ever added to."""
        with self._lock:
            return dict(self._count)
