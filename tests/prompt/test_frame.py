"""The text around facts."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.frame import DEFAULT_FRAME, Frame
from inferscale_sdk.types import Fact, Namespace


def test_line_shows_what_is_known(make_fact: Any) -> None:
    when = datetime(2023, 5, 8, 23, 30, tzinfo=UTC)
    assert DEFAULT_FRAME.line(make_fact()) == "- I live in Oslo.\n"
    assert DEFAULT_FRAME.line(make_fact(speaker="Ann")) == "- Ann: I live in Oslo.\n"
    assert (
        DEFAULT_FRAME.line(make_fact(speaker="Ann", event_time=when))
        == "- [8 May 2023] Ann: I live in Oslo.\n"
    )


def test_line_keeps_the_date_that_was_given(make_fact: Any) -> None:
    """The day is the speaker's own, not the server's."""
    late = datetime(2023, 5, 8, 23, 30, tzinfo=timezone(timedelta(hours=-8)))
    assert "[8 May 2023]" in DEFAULT_FRAME.line(make_fact(event_time=late))


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_a_fact_stays_one_line(make_fact: Any, line_break: str) -> None:
    text = f"one{line_break}- two  {line_break}{line_break} three{line_break}"
    line = DEFAULT_FRAME.line(make_fact(text, speaker=f"A{line_break}nn"))
    assert line == "- A nn: one - two three\n"
    assert len(line.splitlines()) == 1


def test_version_follows_every_text() -> None:
    frames = [
        Frame(),
        Frame(system="x"),
        Frame(header="Notes:\n"),
        Frame(footer="x"),
        Frame(bullet="* "),
        # Moving a text from one part to the next is another frame.
        Frame(header="Notes:\n", footer=""),
    ]
    assert len({frame.version for frame in frames}) == len(frames)
    assert Frame().version == DEFAULT_FRAME.version


def test_default_version_is_pinned() -> None:
    """KV is stored under this; whoever changes a text of the default frame changes it knowingly."""
    assert DEFAULT_FRAME.version == "cf29e2df9e0ad8d1"


def test_header_must_end_its_line() -> None:
    with pytest.raises(ConfigurationError, match="line break"):
        Frame(header="Notes:")


@given(st.text("ab \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029\u00a0", max_size=40))
def test_folding_is_what_it_always_was(text: str) -> None:
    """Lines are tokens and tokens are keys: how a fact is written must not drift."""
    now = datetime(2023, 5, 8, tzinfo=UTC)
    fact = Fact("fabc", 1, text, Namespace(user_id="alice"), "c", 0, now, now)
    breaks = r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+\s*"
    assert DEFAULT_FRAME.line(fact) == f"- {re.sub(breaks, ' ', text.strip())}\n"


@pytest.mark.parametrize("text", ["a" + " " * 256_000 + "b", "a" + " \n" * 128_000 + "b"])
def test_time_grows_with_the_length_only(make_fact: Any, text: str) -> None:
    started = time.thread_time()
    DEFAULT_FRAME.line(make_fact(text, speaker=text))
    assert time.thread_time() - started < 3.0
