"""When to try again: backing off from a failing engine, and parking facts that keep failing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Fact

__all__ = ["Parking", "RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter.

    Args:
        base_seconds: Before the first retry.
        max_seconds: Between retries at most.
        max_attempts: After so many failures a fact stays text until the process ends or the fact
            changes. A failing *engine* is retried for ever.

    Raises:
        ConfigurationError: A number is out of range.
    """

    base_seconds: float = 0.5
    max_seconds: float = 60.0
    max_attempts: int = 5

    def __post_init__(self) -> None:
        if self.base_seconds <= 0 or self.max_seconds < self.base_seconds or self.max_attempts < 1:
            raise ConfigurationError(
                "a retry policy needs 0 < base_seconds <= max_seconds and max_attempts >= 1, got "
                f"base_seconds={self.base_seconds}, max_seconds={self.max_seconds}, "
                f"max_attempts={self.max_attempts}"
            )

    def delay(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failure in a row, jittered by up to a half.

        Without jitter every client of a restarted server would come back in the same instant.
        """
        exponent = min(max(failures, 1) - 1, 32)
        full = min(self.base_seconds * 2.0**exponent, self.max_seconds)
        return full * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret


_TOGETHER = 2
"""Failures after which facts of one request are still tried together."""


@dataclass(slots=True)
class _Parked:
    failures: int
    until: float


class Parking:
    """Fact versions that are left alone for a while, or for good. Safe for several threads.

    Args:
        policy: When to let them out.
        clock: Seconds, monotonic.
    """

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._parked: dict[tuple[str, int], _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def fail(self, facts: Iterable[Fact]) -> None:
        """Count one more failure of each fact and park it.

        Facts that failed together come back together, so that they are still one request. From
        the third failure on each has a wait of its own: one that makes every request fail is then
        told apart from the others.
        """
        with self._lock:
            now = self._clock()
            together = {n: self._policy.delay(n) for n in range(1, _TOGETHER + 1)}
            for fact in facts:
                entry = self._parked.setdefault((fact.id, fact.version), _Parked(0, 0.0))
                entry.failures += 1
                given_up = entry.failures >= self._policy.max_attempts
                wait = together.get(entry.failures) or self._policy.delay(entry.failures)
                entry.until = float("inf") if given_up else now + wait

    def give_up(self, fact: Fact) -> None:
        """Park a fact for good."""
        with self._lock:
            self._parked[fact.id, fact.version] = _Parked(0, float("inf"))

    def release(self, facts: Iterable[Fact]) -> None:
        """Forget the failures of these facts."""
        with self._lock:
            for fact in facts:
                self._parked.pop((fact.id, fact.version), None)

    def ready(self, facts: Iterable[Fact]) -> list[Fact]:
        """Those that may be tried now; of facts that were parked together, all or none."""
        with self._lock:
            now = self._clock()
            waiting = {known for known, entry in self._parked.items() if entry.until > now}
        return [fact for fact in facts if (fact.id, fact.version) not in waiting]

    def is_final(self, fact: Fact) -> bool:
        """Whether the fact is not going to be tried again."""
        entry = self._parked.get((fact.id, fact.version))
        return entry is not None and entry.until == float("inf")

    def next_retry_in(self) -> float | None:
        """Seconds until the first parked fact may be tried, ``None`` if there is none."""
        with self._lock:
            waiting = [e.until for e in self._parked.values() if e.until != float("inf")]
        return max(min(waiting) - self._clock(), 0.0) if waiting else None
