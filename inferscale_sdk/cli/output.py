"""What the commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "err",
    "exit_unless_proved",
    "interactive",
    "one_line",
    "out",
    "print_error",
    "print_figures",
    "print_json",
    "print_json_line",
    "progress_bar",
    "visible",
    "working",
]

# What moves the cursor, colours, or turns the direction of writing. Line feed and tab may stay.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Advance = Callable[[int], None]


def out() -> Console:
    """Where results go."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Where progress and errors go."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def interactive() -> bool:
    """Whether somebody is there to answer a question."""
    # None where it was closed.
    return sys.stdin is not None and sys.stdin.isatty()


def visible(text: str) -> str:
    """``text`` with control characters escaped: a fact must not command the terminal."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """What :func:`visible` gives, with line breaks escaped as well."""
    return visible(text).replace("\n", "\\n")


def print_json(value: object) -> None:
    """One JSON document on stdout; times as ISO 8601, other values by their text."""
    _write_json(value, indent=2)


def print_json_line(value: object) -> None:
    """One JSON document on one line of stdout, for streams of them."""
    _write_json(value)


def print_error(error: BaseException) -> None:
    """One message on stderr."""
    from rich.text import Text

    err().print(Text.assemble((f"{type(error).__name__}: ", "bold red"), visible(str(error))))


def exit_unless_proved(proved: bool, *, injected: int, counted: int) -> None:
    """Say so and end with 1 if vLLM did not count what was injected.

    Args:
        proved: Whether it did.
        injected: Tokens that answers said were injected.
        counted: By how much vLLM's own counter grew.
    """
    if proved:
        return
    err().print(
        f"not proved: {injected} tokens were injected, but vLLM counted {counted}",
        style="bold red",
    )
    raise typer.Exit(1)


def print_figures(figures: Mapping[str, object]) -> None:
    """Names and values on stdout, a line each."""
    for name, value in figures.items():
        out().print(f"{name.replace('_', ' '):<15} {value}", markup=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say what is going on while it does; a line when stderr is no terminal."""
    console = err()
    if not console.is_terminal:
        console.print(what, markup=False)
        yield
        return
    from rich.markup import escape

    with console.status(escape(what)):
        yield


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """A bar on stderr. Yields a function that is told how many of ``total`` are done so far."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = err()
    if not console.is_terminal:
        console.print(f"{what} ({total})", markup=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # A few frames a second: drawing competes with the engine for the processor.
    bar = Progress(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _write_json(value: object, indent: int | None = None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # Escaped by JSON's own rules, so that it stays JSON.
        text = json.dumps(value, indent=indent, default=_plain)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
