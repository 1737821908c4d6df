"""Standard input and output as they are found: closed, full, or in another encoding."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from inferscale_sdk.cli.output import print_error
from inferscale_sdk.errors import ConfigurationError

__all__ = ["clean_streams", "open_stdin", "undecoded"]


@contextmanager
def clean_streams() -> Iterator[None]:
    """Around a whole command: no character and no full disk ends it with a traceback.

    What cannot be printed comes out as a backslash escape. Bytes of stdin that are no text become
    lone surrogates, which :func:`undecoded` finds line by line. What is written to a stream
    that was closed goes nowhere.

    Raises:
        SystemExit: With 1, if the system refused something, such as the output; that is said,
            unless it was a pipe that nobody reads any more.
    """
    _tolerate()
    try:
        try:
            yield
        finally:
            # Now, since Python has no clean way to say that it failed at the end.
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            with suppress(OSError):
                print_error(error)
        for stream in (sys.stdout, sys.stderr):
            _drain(stream)
        sys.exit(1)


def open_stdin() -> TextIO:
    """Standard input.

    Raises:
        ConfigurationError: It is closed.
    """
    if sys.stdin is None:
        raise ConfigurationError("stdin is closed; pipe text into it, or give it /dev/null")
    return sys.stdin


def undecoded(line: str) -> bool:
    """Whether a line of stdin has bytes that its encoding does not know."""
    return any("\udc80" <= character <= "\udcff" for character in line)


def _tolerate() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - lives on
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _drain(stream: TextIO) -> None:
    """Let what could not be written go nowhere, or Python tries again when it ends."""
    with suppress(OSError, ValueError):
        stream.flush()
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
