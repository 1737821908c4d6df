"""Leaving a store alone that does not answer, and waiting for one that may, but not for ever."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Breaker", "Deadline", "Late"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Late(TimeoutError):
    """A call took longer than its limit. It may still end, in a thread of its own."""


class Breaker:
    """Opens after failures in a row; while it is open, nobody should try.

    After the cool-down one caller may try, while the others still may not. Safe for several
    threads.

    Args:
        failures: How many in a row open it.
        cooldown_seconds: How long it stays open.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        failures: int,
        cooldown_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = failures
        self._cooldown = cooldown_seconds
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether failures have opened it and nothing has succeeded since."""
        return self._failures >= self._limit

    def allows(self) -> bool:
        """Whether the caller may try now. One that may must report how it went."""
        with self._lock:
            if self._failures < self._limit:
                return True
            now = self._clock()
            if now < self._open_until:
                return False
            self._open_until = now + self._cooldown  # the others go on waiting
            return True

    def succeeded(self) -> bool:
        """It worked; true if that closed the breaker."""
        with self._lock:
            was_open = self._failures >= self._limit
            self._failures = 0
            return was_open

    def failed(self) -> bool:
        """It did not work; true if that opened the breaker."""
        with self._lock:
            self._failures += 1
            self._open_until = self._clock() + self._cooldown
            return self._failures == self._limit


class Deadline:
    """Runs calls on threads of its own and waits for each no longer than a limit.

    What runs into the limit goes on in its thread until it ends by itself; what has not started by
    then never does. The threads are daemons: a call that hangs for ever holds up no exit.

    Args:
        n_threads: How many calls may run at once.
        timeout_seconds: The usual limit, waiting for a free thread included.
    """

    def __init__(self, n_threads: int, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name="inferscale-remote", daemon=True)
            for _ in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self,
        function: Callable[[], Result],
        *,
        on_late: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Result:
        """Call ``function`` and give back what it gives back, or raise what it raises.

        Args:
            function: What to call.
            on_late: Called once after :class:`Late`, when ``function`` has ended, however it did,
                or it is certain that it never starts.
            timeout_seconds: Another limit for this call.

        Raises:
            Late: It took longer than the limit.
        """
        call = _Call(function, on_late)
        limit = self._timeout if timeout_seconds is None else timeout_seconds
        self._calls.put(call)
        if not call.over.wait(limit) and call.abandon():
            raise Late(f"no answer within {limit:g} s")
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result

    def close(self) -> None:
        """End the threads once their calls are over. Does not wait for those that hang."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(timeout=0.1)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.carry_out()


class _Call:
    def __init__(self, function: Callable[[], Any], on_late: Callable[[], None] | None) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._function = function
        self._on_late = on_late
        self._abandoned = self._started = False
        self._lock = threading.Lock()

    def abandon(self) -> bool:
        """Stop waiting; false if it is over after all."""
        with self._lock:
            self._abandoned = not self.over.is_set()
            never = self._abandoned and not self._started
        if never and self._on_late is not None:
            self._on_late()
        return self._abandoned

    def carry_out(self) -> None:
        with self._lock:
            if self._is_abandoned():
                return
            self._started = True
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error
        with self._lock:
            self.over.set()
            late = self._is_abandoned()
        if late and self._on_late is not None:
            try:
                self._on_late()
            except Exception as error:
                logger.warning("cleaning up after a call that was given up on failed: %s", error)

    def _is_abandoned(self) -> bool:
        return self._abandoned
