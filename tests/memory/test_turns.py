from __future__ import annotations

import json
import time
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


def test_handles_reach_the_model_through_no_string():
    escaped = MARKER.replace(":", "\\u003a")
    call = {
        "id": "c1",
        "type": "function",
        "function": {
            "name": f"find{MARKER}",
            "arguments": f'{{"q": "a {escaped}", "{MARKER}k": ["{MARKER}", {{"type": "'
            f'{MARKER}"}}]}}',
        },
    }
    chat = as_chat(
        [
            Message("user", "hello", name=f"Ann {MARKER}"),
            Message("user", "hello", name=MARKER),
            {"role": "user", "content": "x", "name": MARKER},
            {"role": "assistant", "content": MARKER, "tool_calls": [call]},
            {"role": f"user{MARKER}", "content": "x", "documents": [{"text": f"a {MARKER}"}]},
            {"role": "user", "content": "kept", f"content{MARKER}": 7},
        ]
    )
    assert chat[0] == Message("user", "hello", name="Ann")
    assert chat[1] == Message("user", "hello")
    assert chat[2] == {"role": "user", "content": "x"}
    function = chat[3]["tool_calls"][0]["function"]
    assert function["name"] == "find"
    assert json.loads(function["arguments"]) == {"q": "a", "k": ["", {"type": ""}]}
    assert chat[4] == {"role": "user", "content": "x", "documents": [{"text": "a"}]}
    assert chat[5] == {"role": "user", "content": "kept"}


def test_speakers_are_stored_without_handles():
    (turn,) = as_turns({"role": "user", "content": "I like tea", "name": f"Ann{MARKER}"})
    assert turn.name == "Ann"
    (turn,) = as_turns({"role": "user", "content": "I like tea", "name": MARKER})
    assert turn.name is None


def test_what_holds_no_handle_stays_as_it_is():
    arguments = '{"a":  1}'
    message = {
        "role": "assistant",
        "content": "x",
        "name": " Ann ",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    assert as_chat([message]) == [message]


@pytest.mark.parametrize(
    ("text", "max_chars"),
    [
        ("a. " * 85_000, 256_000),
        ("ab " * 85_000, 16),
        ("a" * 256_000, 16),
        ("a" + " " * 256_000 + "b", 16),
        ("." + '"' * 256_000 + "b", 256_000),
    ],
    ids=["sentences", "words", "one_word", "spaces", "quotes"],
)
def test_time_of_cutting_grows_with_the_length_only(text, max_chars):
    started = time.thread_time()
    pieces = split_text(text, max_chars)
    assert time.thread_time() - started < 3.0
    assert all(0 < len(piece) <= max_chars for piece in pieces[:-1])
