"""Hints to a server, sent aside: nobody waits for them, and they may be lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inferscale_sdk.errors import InferScaleError, blame

__all__ = ["HintSender"]

log = logging.getLogger(__name__)

_MAX_WAITING = 8


class HintSender:
    """Sends hints from a thread of its own; when too many wait, new ones are dropped.

    Args:
        send: Sends one hint's keys; what it raises is logged.
    """

    def __init__(self, send: Callable[[Sequence[str]], object]) -> None:
        self._send = send
        self._room = threading.Semaphore(_MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferscale-hint")

    def hint(self, keys: Sequence[str]) -> bool:
        """Have a hint sent; false if it was dropped."""
        if not keys or not self._room.acquire(blocking=False):
            return False
        try:
            self._thread.submit(self._send_one, tuple(keys))
        except RuntimeError:  # closed
            self._room.release()
            return False
        return True

    def _send_one(self, keys: Sequence[str]) -> None:
        try:
            self._send(keys)
        except InferScaleError as error:
            log.debug("a hint was lost: %s", blame(error))
        finally:
            self._room.release()

    def close(self) -> None:
        """Send nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
