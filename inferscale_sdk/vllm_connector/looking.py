"""Worker half: where keys lie on this rank. Looking at a folder takes time, so it is done aside."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from inferscale_sdk.vllm_connector.metadata import Located, Order

__all__ = ["Looker"]

log = logging.getLogger(__name__)

Places = dict[str, tuple[str, ...]]


class Looker:
    """Looks for keys in the tiers below memory, in a thread.

    Args:
        executor: Whose threads.
        below: Names of the places by key, of those that lie anywhere below memory.
    """

    def __init__(self, executor: Executor, below: Callable[[Collection[str]], Places]) -> None:
        self._executor = executor
        self._below = below
        self._lock = threading.Lock()
        self._found: list[Located] = []

    def start(self, order: Order, in_memory: Collection[str]) -> None:
        """Look for an order's keys; ``in_memory`` are those that lie in host memory now."""
        self._executor.submit(self._look, order, frozenset(in_memory))

    def take(self) -> list[Located]:
        """What was found since the last call: every key with its places, which may be none."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def _look(self, order: Order, in_memory: frozenset[str]) -> None:
        try:
            places = self._below(order.keys)
        except Exception:
            # Nobody must take for gone what could not be looked for.
            log.exception("inferscale: looking for segments failed")
            places = dict.fromkeys(order.keys, ("unknown",))
        found = [
            Located(
                order.serial,
                key,
                (*(["host"] if key in in_memory else []), *places.get(key, ())),
            )
            for key in order.keys
        ]
        with self._lock:
            self._found += found
