"""Ends a server when the process that started it is gone, however it went.

Run as a script with a process group's id; standard input is a pipe whose other end the parent
holds. A byte means that the parent took care of the group itself; the end of the pipe without one
means that the parent died. A kernel's parent-death signal would be simpler, but it fires when the
*thread* that started the server ends, and reaches no grandchildren.

Imports nothing of this package, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

_GRACE_SECONDS = 10.0


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True


def main() -> None:
    """Wait for the pipe, then end the group if nobody else has."""
    group = int(sys.argv[1])
    if sys.stdin.buffer.read(1):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline and _group_lives(group):
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
