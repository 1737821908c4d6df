"""Handles: genuine ones verify, every other text does not, and all of them survive transport."""

from __future__ import annotations

import json
import re
import string
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.errors import HandleError
from inferscale_sdk.prompt.handles import HandleMinter, strip_handles
from inferscale_sdk.types import Fact, Namespace

MINTER = HandleMinter(b"m" * 32)


def test_mint_find_verify(make_fact: Any) -> None:
    fact = make_fact()
    handle = MINTER.mint(fact)
    text = f"before {handle} after {handle}"
    first, second = MINTER.find(text)
    assert (first.fact_id, first.version, first.marker) == (fact.id, 1, handle.marker)
    assert text[second.start : second.stop] == handle.marker
    assert MINTER.verify(handle.marker, fact)
    assert MINTER.mint(fact) == handle


def test_marker_is_pinned(make_fact: Any) -> None:
    """Markers lie in checkpoints and vector stores; their form must not drift."""
    assert MINTER.mint(make_fact()).marker == "[[ifs:fabc230abhlppemenmamedmifjdb]]"


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "I live in Rome."},
        {"version": 2},
        {"namespace": Namespace(user_id="bob")},
        {"namespace": Namespace(user_id="alice", agent_id="tutor")},
        {"id": "fabc24"},
    ],
)
def test_the_handle_changes_with_the_fact(make_fact: Any, changes: dict[str, Any]) -> None:
    fact, other = make_fact(), make_fact(**changes)
    assert MINTER.mint(fact).marker != MINTER.mint(other).marker
    assert not MINTER.verify(MINTER.mint(fact).marker, other)
    assert not MINTER.verify(MINTER.mint(other).marker, fact)


def test_other_stores_and_forgeries_do_not_verify(make_fact: Any) -> None:
    fact = make_fact()
    marker = MINTER.mint(fact).marker
    assert not HandleMinter(b"n" * 32).verify(marker, fact)
    for i, char in enumerate(marker):
        for other in "abf0[]":
            if other != char:
                assert not MINTER.verify(marker[:i] + other + marker[i + 1 :], fact)
    assert not MINTER.verify(marker + " ", fact)
    assert not MINTER.verify("", fact)


@given(
    version=st.integers(1, 2**31),
    tail=st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=1, max_size=40),
)
def test_any_id_and_version_round_trips(version: int, tail: str) -> None:
    now = datetime(2023, 5, 8, tzinfo=UTC)
    owner = Namespace(user_id="alice")
    made = Fact("f" + tail, version, "text", owner, "c", 0, now, now)
    (match,) = MINTER.find(f"x{MINTER.mint(made)}y")
    assert (match.fact_id, match.version) == ("f" + tail, version)
    assert MINTER.verify(match.marker, made)


def test_ids_that_cannot_ride(make_fact: Any) -> None:
    for bad in ("", "abc", "f0", "fABC", "f a", "f" * 80):
        with pytest.raises(HandleError, match="base32"):
            MINTER.mint(make_fact(id=bad))
    with pytest.raises(HandleError, match="16"):
        HandleMinter(b"short")


def test_markers_survive_prompt_paths(make_fact: Any) -> None:
    marker = MINTER.mint(make_fact(version=12)).marker
    jinja2 = pytest.importorskip("jinja2")
    xml = pytest.importorskip("xml.sax.saxutils")
    template = "Context: {context}"
    assert marker in template.format(context=marker)
    assert marker.format() == marker  # holds no braces that a second formatting would take
    assert string.Template(marker).substitute() == marker
    assert jinja2.Template("{{ x }}", autoescape=True).render(x=marker) == marker
    assert xml.escape(marker) == marker
    assert json.loads(json.dumps(marker)) == marker
    assert json.dumps(marker)[1:-1] == marker
    assert marker.isascii()
    assert " ".join(marker.split()) == marker


def test_markers_are_no_personal_data(make_fact: Any) -> None:
    for version in range(1, 200):
        inside = MINTER.mint(make_fact(version=version)).marker[6:-2]
        assert inside.isalnum()
        assert inside[0].isalpha()
        assert not re.search(r"\d{9,}", inside)
        assert not re.search(r"(?:[0-9a-f]{2}[:-]){5}", inside)
        assert "@" not in inside


def test_strip(make_fact: Any) -> None:
    marker = MINTER.mint(make_fact()).marker
    assert strip_handles("nothing here") == "nothing here"
    assert strip_handles(f"see {marker} please") == "see please"
    assert strip_handles(f"{marker}") == ""
    assert strip_handles(f"Facts:\n{marker}\n- {marker}\nQuestion: x") == "Facts:\nQuestion: x"
    assert strip_handles(f"keep\n\nblank  lines {marker}") == "keep\n\nblank lines"


def test_strip_takes_whatever_looks_like_one(make_fact: Any) -> None:
    marker = MINTER.mint(make_fact()).marker
    assert "ifs:" not in strip_handles("a [[ifs:forged]] b")
    assert "ifs:" not in strip_handles(f"a [[ifs:{marker}]] b")
    assert strip_handles("a [[wiki link]] b [[ifs") == "a [[wiki link]] b [[ifs"


@given(st.text("[]ifs:0ab \n", max_size=60))
def test_nothing_left_looks_like_one(text: str) -> None:
    assert not re.search(r"\[\[ifs:[^\[\]\s]{0,256}\]\]", strip_handles(text))


@given(st.lists(st.sampled_from(["[[ifs:", "]]", "[", "]", "ifs:", "a", " ", "\n"]), max_size=30))
def test_one_pass_removes_what_repeated_passes_would(parts: list[str]) -> None:
    text = "".join(parts)
    plain = text.replace("\n", "").replace(" ", "")
    expected = plain
    while (fewer := re.sub(r"\[\[ifs:[^\[\]\s]{0,256}\]\]", "", expected)) != expected:
        expected = fewer
    assert strip_handles(plain) == (expected if expected.strip("-*•") else "")
    assert not re.search(r"\[\[ifs:[^\[\]\s]{0,256}\]\]", strip_handles(text))


@pytest.mark.parametrize(
    "text",
    [
        "[[ifs:" * 32_000 + "]]" * 32_000,
        "[[ifs:" + "[[ifs:a]]b" * 26_000,
        "[[ifs:" + "a" * 256_000 + "]]",
        "[[ifs:" + "]" * 256_000,
        "[" * 256_000 + "ifs:",
        "[[ifs:a" * 36_000,
        "[[ifs:a]]" + " " * 256_000 + "x",
    ],
    ids=["nested", "inner", "long", "closings", "openings", "open", "spaces"],
)
def test_time_grows_with_the_length_only(text: str) -> None:
    started = time.thread_time()
    strip_handles(text)
    assert time.thread_time() - started < 3.0
