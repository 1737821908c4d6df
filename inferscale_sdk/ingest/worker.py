"""The thread that encodes while the application goes on."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from enum import StrEnum

from inferscale_sdk.errors import EngineTimeout, EngineUnavailable, blame
from inferscale_sdk.ingest.encoder import Encoder
from inferscale_sdk.ingest.orphans import OrphanCheck
from inferscale_sdk.ingest.progress import ProgressCallback
from inferscale_sdk.ingest.retry import RetryPolicy
from inferscale_sdk.types import Namespace

__all__ = ["EncodeWorker", "WorkerState", "WorkerStatus"]

log = logging.getLogger(__name__)


class WorkerState(StrEnum):
    """What the thread is doing."""

    STOPPED = "stopped"
    IDLE = "idle"
    """Nothing to do, or nothing that may be tried yet."""
    ENCODING = "encoding"
    BACKING_OFF = "backing_off"
    """The engine failed; facts are served as text until it answers."""
    TEXT_ONLY = "text_only"
    """The engine cannot inject memory."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The thread's state and, when something is wrong, why."""

    state: WorkerState
    reason: str = ""


class EncodeWorker:
    """Runs an :class:`Encoder` whenever facts wait. Adding facts never waits for it.

    A burst of additions is gathered for ``linger_seconds`` and encoded in groups; namespaces that
    were just written to come first, so that one user's bulk import does not hold up another's
    chat. The thread survives every failure of engine and store.

    Args:
        encoder: What to run.
        retry: How to back off from a failing engine.
        linger_seconds: How long to gather after a wake-up.
        poll_seconds: How often to look for facts that another process added.
        slice_facts: Facts encoded between two looks at what is most urgent.
        orphans: Compares the ledger with the engine, when there is nothing to encode.
        check_seconds: How often, counted from the start; 0 never.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        retry: RetryPolicy | None = None,
        linger_seconds: float = 0.05,
        poll_seconds: float = 5.0,
        slice_facts: int = 64,
        orphans: OrphanCheck | None = None,
        check_seconds: float = 0.0,
    ) -> None:
        self._encoder = encoder
        self._retry = retry or RetryPolicy()
        self._linger = linger_seconds
        self._poll = poll_seconds
        self._slice = slice_facts
        self._orphans = orphans if check_seconds > 0 else None
        self._check_seconds = check_seconds
        self._checked = time.monotonic()
        self._changed = threading.Condition()
        self._urgent: dict[Namespace, None] = {}
        self._awake = True
        self._stopping = threading.Event()
        self._failures = 0
        self._status = WorkerStatus(WorkerState.STOPPED)
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> WorkerStatus:
        """What the thread is doing."""
        return self._status

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        with self._changed:
            if self._thread is not None or self._stopping.is_set():
                return
            # A daemon: an application that forgets to close must still be able to exit, and
            # whatever is left is still in the store's queue.
            self._thread = threading.Thread(
                target=self._run, name="inferscale-encoder", daemon=True
            )
            self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """Ask the thread to end and wait for it; the request in flight is finished first.

        Returns:
            Whether it ended within ``timeout`` seconds.
        """
        self._stopping.set()
        with self._changed:
            thread = self._thread
            self._changed.notify_all()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def wake(self, scope: Namespace | None = None) -> None:
        """Facts of ``scope`` wait, or keys are to be forgotten. Returns at once."""
        with self._changed:
            if scope is not None:
                self._urgent[scope] = None
            self._awake = True
            self._changed.notify_all()

    def wait(
        self,
        timeout: float | None = None,
        scope: Namespace | None = None,
        progress: ProgressCallback | None = None,
    ) -> bool:
        """Wait until every fact of ``scope`` that can be encoded is.

        Args:
            timeout: Seconds to wait at most.
            scope: Whose facts; everybody's by default.
            progress: Called now and then with what the encoder has done since it was made.

        Returns:
            Whether that is so. ``False`` at once if the engine cannot inject, and after
            ``timeout`` seconds otherwise.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self.wake(scope)
        while not self._stopping.is_set():
            done = self._is_done(scope)
            if progress is not None:
                progress(self._encoder.total)
            if done:
                return True
            if self._status.state is WorkerState.TEXT_ONLY:
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            with self._changed:
                # Not for ever: another process may do the work without telling.
                self._changed.wait(min(0.25, left) if left is not None else 0.25)
        return self._is_done(scope)

    # -- the thread ------------------------------------------------------------------------

    def _is_done(self, scope: Namespace | None) -> bool:
        try:
            return self._encoder.is_done(scope)
        except Exception as error:  # the engine or the store is away: not done
            log.debug("cannot tell whether encoding is done: %s", type(error).__name__)
            return False

    def _run(self) -> None:
        delay = 0.0
        while not self._sleep(delay):
            delay = self._round()
            with self._changed:
                self._changed.notify_all()
        self._status = WorkerStatus(WorkerState.STOPPED)

    def _sleep(self, delay: float) -> bool:
        """Wait for work; returns whether to stop.

        While the engine is away only time ends the wait, else every added fact would be one more
        attempt.
        """
        if self._failures:
            return self._stopping.wait(delay)
        deadline = time.monotonic() + delay
        with self._changed:
            while not (self._awake or self._stopping.is_set()):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            fresh, self._awake = self._awake, False
        return self._stopping.wait(self._linger if fresh else 0.0)

    def _round(self) -> float:
        """One slice of work; returns the seconds until the next, if nobody wakes the thread."""
        try:
            if self._failures:
                self._encoder.engine_was_lost()
            delay = self._work()
        except (EngineUnavailable, EngineTimeout) as error:
            return self._back_off(error, logging.WARNING)
        except Exception as error:  # nothing may end the thread
            return self._back_off(error, logging.ERROR)
        if self._failures:
            log.info("the engine answers again; encoding goes on")
        self._failures = 0
        return delay

    def _work(self) -> float:
        if self._status.state is not WorkerState.BACKING_OFF:
            self._status = WorkerStatus(WorkerState.ENCODING)
        with self._changed:
            scope = next(iter(self._urgent), None)
        done = self._encoder.run_once(self._slice, scope=scope, stop=self._stopping)
        more = bool(done.requests or done.unencodable)
        if scope is not None:
            with self._changed:
                self._urgent.pop(scope, None)
                if more:  # back to the end of the line
                    self._urgent[scope] = None
        if done.reason:
            self._status = WorkerStatus(WorkerState.TEXT_ONLY, done.reason)
            with self._changed:
                self._urgent.clear()
            return self._poll
        self._status = WorkerStatus(WorkerState.IDLE)
        if more or scope is not None:
            return 0.0
        if self._check_orphans():
            return 0.0
        retry_in = self._encoder.next_retry_in()
        return self._poll if retry_in is None else min(self._poll, retry_in)

    def _check_orphans(self) -> bool:
        """Look for orphans if it is time to; returns whether there is something to do now."""
        now = time.monotonic()
        if self._orphans is None or now - self._checked < self._check_seconds:
            return False
        self._checked = now
        found = self._orphans.run(self._stopping)
        return bool(found.orphans or found.lost)

    def _back_off(self, error: Exception, level: int) -> float:
        self._failures += 1
        delay = self._retry.delay(self._failures)
        self._status = WorkerStatus(WorkerState.BACKING_OFF, f"{type(error).__name__}: {error}")
        # Once per outage, not once per attempt.
        log.log(
            level if self._failures == 1 else logging.DEBUG,
            "encoding stopped, memory is served as text (%s); next attempt in %.1f s",
            # Of an engine that is away the message has the address; others may quote facts.
            error if isinstance(error, EngineUnavailable | EngineTimeout) else blame(error),
            delay,
        )
        return delay
