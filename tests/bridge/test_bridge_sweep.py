"""Handles out of messages."""

from __future__ import annotations

import json

import pytest

from inferscale_sdk.bridge import TOOL_PLACEHOLDER, deep_merge, has_markers, sweep, sweep_text
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Message

A, B, C = (f"[[ifs:f{name}0{'a' * 20}b]]" for name in ("a", "b", "c"))
ASK = {"role": "user", "content": "Where does Ann live?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": f"Answer from this:\n\n{A}\n\n{B}"},
        {"role": "user", "content": f"{A}\n{B}\n\nQuestion: who?"},
        {"role": "assistant", "content": f"I looked: {A} {B}"},
        {"role": "tool", "content": json.dumps([A, B]) + " found", "tool_call_id": "c1"},
        {"role": "user", "content": [{"type": "text", "text": f"{A} and {B}, who?"}]},
        {"role": "user", "content": [f"{A} and", f"{B}, who?"]},
    ],
    ids=["system", "user", "assistant", "tool", "parts", "strings"],
)
def test_markers_are_found_in_every_role_and_form(message):
    swept = sweep([message, ASK])
    assert swept.markers == (A, B)
    assert len(swept.messages) == 2
    assert not has_markers(swept.messages)


@pytest.mark.parametrize(
    "message",
    [
        Message("system", "half a \ud83d character"),
        {"role": "user", "content": [{"type": "text", "text": "\ud83d"}]},
        {"role": "tool", "content": "found", "tool_call_id": "\ud83d"},
        {**CALL, "\ud83d": 1},
    ],
    ids=ascii,
)
def test_half_a_character_is_refused(message):
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        sweep([message, ASK])
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        sweep_text("half a \ud83d character")


def test_a_message_of_ours_counts_as_well():
    swept = sweep([Message("user", f"{A} who?", name="ann")])
    assert swept.messages == ({"role": "user", "content": " who?", "name": "ann"},)
    assert swept.markers == (A,)


@pytest.mark.parametrize("content", [A, f"{A}\n\n{B}", f"- {A}\n- {B}", json.dumps([A, B]), [A, B]])
@pytest.mark.parametrize("role", ["system", "assistant", "user"])
def test_a_message_of_nothing_but_handles_goes(role, content):
    assert sweep([{"role": role, "content": content}, ASK]).messages == (ASK,)


@pytest.mark.parametrize("content", [A, json.dumps([A, B]), [{"type": "text", "text": A}]])
def test_the_answer_to_a_tool_call_keeps_its_place(content):
    tool = {"role": "tool", "content": content, "tool_call_id": "c1"}
    swept = sweep([ASK, CALL, tool])
    assert swept.messages == (ASK, CALL, {**tool, "content": TOOL_PLACEHOLDER})


def test_the_last_question_stays_even_if_nothing_is_left():
    assert sweep([ASK, {"role": "user", "content": A}]).messages[-1]["content"] == ""


def test_an_assistant_turn_that_calls_a_tool_stays():
    swept = sweep([ASK, {**CALL, "content": A}])
    assert swept.messages[1]["content"] == ""
    assert swept.messages[1]["tool_calls"] == CALL["tool_calls"]


def test_handles_of_the_last_message_come_first_and_each_once():
    swept = sweep([{"role": "user", "content": f"{C} {A} old"}, {"role": "user", "content": B + A}])
    assert swept.markers == (B, A, C)


@pytest.mark.parametrize("forged", ["[[ifs:x]]", "[[ifs:]]", "[[ifs:f12345]]", "[[ifs:F!?]]"])
def test_what_only_looks_like_a_handle_goes_too(forged):
    swept = sweep([{"role": "user", "content": f"hello {forged} there"}])
    assert swept.messages[0]["content"] == "hello there"
    assert swept.markers == (forged,)


def test_handles_nested_to_survive_one_removal_go():
    text, _ = sweep_text("a [[ifs:[[ifs:x]]y]] b")
    assert "ifs" not in text


def test_messages_without_handles_are_untouched():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    messages = (ASK, CALL, image, {"role": "system", "content": "  odd   spacing \n\n"})
    assert sweep(messages).messages == messages


def test_ids_of_tool_calls_are_untouched():
    tool = {"role": "tool", "content": f"{A} x", "tool_call_id": "[[ifs:c1]]"}
    assert sweep([tool]).messages[0]["tool_call_id"] == "[[ifs:c1]]"


def test_deep_merge_keeps_both_sides():
    ours = {"cache_salt": "s", "kv_transfer_params": {"inferscale": {"v": 1}}}
    theirs = {"kv_transfer_params": {"do_remote_decode": True}, "top_k": 3, "cache_salt": "x"}
    assert deep_merge(None, theirs, ours) == {
        "cache_salt": "s",
        "kv_transfer_params": {"do_remote_decode": True, "inferscale": {"v": 1}},
        "top_k": 3,
    }
    assert theirs["cache_salt"] == "x"
