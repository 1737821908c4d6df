"""Ends vLLM's engine process when the process that started it was killed.

vLLM's API server ends its engine in order, but not if it is killed itself: the engine would keep
its memory, on a GPU the device's too, until somebody finds it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait

__all__ = ["end_with_parent"]

log = logging.getLogger(__name__)

_GRACE_SECONDS = 10.0


def end_with_parent() -> threading.Thread | None:
    """Send this process SIGTERM, then SIGKILL, once the parent is gone.

    Returns:
        The thread that waits for it; ``None`` in a process that :mod:`multiprocessing` did not
        start, such as an application with the engine in its own process.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return None

    def watch() -> None:
        wait([parent.sentinel])
        log.warning("inferscale: process %s, which started this one, is gone; ending", parent.pid)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=watch, name="inferscale-parent", daemon=True)
    thread.start()
    return thread
