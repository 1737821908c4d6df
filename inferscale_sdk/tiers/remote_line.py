"""The line to a remote store: limits, the breaker, and one kind of failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from inferscale_sdk.tiers.breaker import Breaker, Deadline, Late
from inferscale_sdk.tiers.meter import Meter
from inferscale_sdk.tiers.remote_base import safe_url
from inferscale_sdk.tiers.remote_open import RemoteLimits

__all__ = ["Line", "Unavailable"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_THREADS = 4
_FAILURES = 2


class Unavailable(Exception):
    """The store failed, took too long, or is being left alone.

    Args:
        message: Why, without secrets.
        late: Whether the call may still have an effect.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Line:
    """Calls to one store. Safe for several threads.

    Args:
        address: The store, without secrets.
        limits: How long calls may take, and how long a store that fails is left alone.
        meter: Failures count as ``errors``.
    """

    def __init__(self, address: str, limits: RemoteLimits, meter: Meter) -> None:
        self.address = address
        self._meter = meter
        self._breaker = Breaker(_FAILURES, limits.cooldown_seconds)
        self._deadline = Deadline(_THREADS, limits.timeout_seconds)

    @property
    def is_down(self) -> bool:
        """Whether the store is being left alone at present."""
        return self._breaker.is_open

    def call(
        self,
        what: str,
        function: Callable[[], Result],
        *,
        on_late: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Result:
        """Call the store.

        Args:
            what: What is being done, for the log.
            function: Does it, on a thread of this line's.
            on_late: See :meth:`~inferscale_sdk.tiers.breaker.Deadline.run`.
            timeout_seconds: Another limit than the usual one.

        Raises:
            Unavailable: It failed, took too long, or the store is being left alone.
        """
        if not self._breaker.allows():
            raise Unavailable("the store did not answer lately and is left alone for a while")
        try:
            result = self._deadline.run(function, on_late=on_late, timeout_seconds=timeout_seconds)
        except Exception as error:
            self._meter.count("errors")
            told = f"{type(error).__name__}: {safe_url(str(error))}"[:300]
            if self._breaker.failed():
                logger.warning(
                    "the remote store %s does not work and is left alone for a while: %s: %s",
                    self.address,
                    what,
                    told,
                )
            raise Unavailable(told, late=isinstance(error, Late)) from error
        if self._breaker.succeeded():
            logger.info("the remote store %s works again", self.address)
        return result

    def attempt(
        self, what: str, function: Callable[[], Result], *, timeout_seconds: float | None = None
    ) -> Result | None:
        """The same, with ``None`` for a store that does not work."""
        try:
            return self.call(what, function, timeout_seconds=timeout_seconds)
        except Unavailable as error:
            logger.debug("%s at %s: %s", what, self.address, error)
            return None

    def close(self) -> None:
        """End the threads once their calls are over."""
        self._deadline.close()
