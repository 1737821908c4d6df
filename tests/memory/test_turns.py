from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.memory.turns import as_chat, as_turns, last_user_text, split_text
from inferscale_sdk.types import Message

WHEN = datetime(2024, 5, 1, tzinfo=UTC)
MARKER = "[[ifs:fabc0" + "a" * 20 + "b]]"


@pytest.mark.parametrize(
    "messages",
    [
        Message("user", "hello"),
        {"role": "user", "content": "hello"},
        [Message("user", "hello")],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        ({"role": "user", "content": "hello"},),
    ],
)
def test_every_shape_of_a_turn(messages):
    (turn,) = as_turns(messages)
    assert (turn.role, turn.content) == ("user", "hello")


def test_a_string_is_a_question_in_a_chat_and_a_statement_in_memory():
    assert as_chat("hi") == [Message("user", "hi")]
    assert as_turns("hi") == [Message("", "hi")]


def test_what_is_not_worth_remembering():
    turns = as_turns(
        [
            {"role": "system", "content": "be nice"},
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            {"role": "user", "content": "   "},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "user", "content": " kept ", "name": "Ann"},
        ]
    )
    assert turns == [Message("user", "kept", "Ann")]


def test_times():
    turns = as_turns(
        [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b", "timestamp": "2023-01-02T03:04:05+00:00"},
            Message("user", "c", timestamp=datetime(2022, 1, 1, tzinfo=UTC)),
        ],
        WHEN,
    )
    assert [t.timestamp.year for t in turns] == [2024, 2023, 2022]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (42, "int"),
        ([42], "int"),
        ([{"content": "no role"}], "role"),
        ([{"role": "user", "content": 7}], "int"),
        ([{"role": "user", "content": [7]}], "int"),
        ([{"role": "user", "content": "x", "timestamp": "yesterday"}], "ISO 8601"),
    ],
)
def test_malformed_messages_are_refused(messages, says):
    with pytest.raises(ConfigurationError, match=says):
        as_turns(messages)


def test_other_fields_of_a_mapping_are_kept():
    (message,) = as_chat([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}])
    assert message == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}


def test_handles_are_taken_out_of_every_text():
    chat = as_chat(
        [
            Message("user", f"see {MARKER} here"),
            {"role": "tool", "content": MARKER},
            f"and {MARKER}",
        ]
    )
    assert "ifs" not in repr(chat)
    assert as_turns(MARKER) == []


def test_the_question_is_the_users_last_turn():
    chat = as_chat(
        [
            {"role": "user", "content": "first"},
            {"role": "user", "content": "second"},
            {"role": "assistant", "content": "answer"},
        ]
    )
    assert last_user_text(chat) == "second"
    assert last_user_text([]) == ""


def test_split_at_sentences():
    text = 'First one. Second one! "Third one?" Fourth'
    assert split_text(text, 24) == ["First one. Second one!", '"Third one?" Fourth']
    assert split_text(text, 1000) == [text]
    assert split_text("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]
    assert split_text("aaaa bbbb cccc", 10) == ["aaaa bbbb", "cccc"]


@given(st.text(min_size=1, max_size=400), st.integers(16, 80))
def test_split_loses_nothing_but_white_space(text, limit):
    pieces = split_text(text, limit)
    assert all(0 < len(p) <= limit for p in pieces) or not text.strip()
    assert "".join("".join(pieces).split()) == "".join(text.split())
