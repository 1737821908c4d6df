"""Wrong calls are told what is wrong with which value, and a closed memory does not pretend."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.errors import ConfigurationError, NamespaceError, NotFoundError, StoreError
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import AsyncMemory
from inferscale_sdk.prompt.frame import Frame
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.types import Message


@pytest.mark.parametrize("threshold", ["x", math.nan, math.inf, True, [0.5], 5, -1.5])
def test_a_threshold_is_a_number(memory, threshold):
    memory.add("I like tea", user_id="alice")
    for ask in (memory.search, memory.handles, memory.answer):
        with pytest.raises(ConfigurationError, match="threshold="):
            ask("tea", user_id="alice", threshold=threshold)
        with pytest.raises(ConfigurationError, match="threshold="):
            ask(" ", user_id="alice", threshold=threshold)


def test_thresholds_of_any_kind_of_number(memory):
    memory.add("I like tea", user_id="alice")
    for threshold in (0, 0.0, -1, np.float64(-0.5)):
        assert memory.search("tea", user_id="alice", threshold=threshold)


@pytest.mark.parametrize("count", [-1, 10**20, 1.5, True, "3"])
@pytest.mark.parametrize("what", ["limit", "offset"])
def test_a_count_is_one_that_a_store_can_count(memory, what, count):
    with pytest.raises(ConfigurationError, match=f"{what}=.* from 0 to"):
        memory.get_all(user_id="alice", **{what: count})


def test_who_is_meant_is_said_in_words(memory):
    for look in (memory.get, memory.history, memory.delete):
        with pytest.raises(NotFoundError) as caught:
            look("nope", user_id="nora", agent_id="hal")
        told = str(caught.value)
        assert "user 'nora', agent 'hal'" in told and "get_all" in told
        assert "Namespace" not in told and "None" not in told


@pytest.mark.parametrize("message", [{1: 2, "a": 3}, {}, {"role": 3}, {None: "x", (1,): 2}])
def test_a_message_without_a_role_is_named(memory, message):
    with pytest.raises(ConfigurationError, match="needs a role") as caught:
        memory.add(message, user_id="alice")
    assert str(list(message)) in str(caught.value)
    with pytest.raises(ConfigurationError, match="needs a role"):
        memory.answer([message], user_id="alice")


@pytest.mark.parametrize("message", [{"role": "user", "content": "tea", 1: 2}, {"role": "x"}])
def test_other_keys_are_let_be(memory, message):
    memory.add(message, user_id="alice")
    memory.answer([{"role": "user", "content": "tea?"}, message], user_id="alice")


HALF = "half a \ud83d character"
"""What badly decoded input leaves: no database, tokenizer or server takes it."""

WITH_HALF = [
    HALF,
    [HALF],
    Message("user", HALF),
    Message(HALF, "tea?"),
    Message("user", "tea?", name=HALF),
    {"role": "user", "content": HALF},
    {"role": "user", "content": [{"type": "text", "text": HALF}]},
    {"role": HALF, "content": "tea?"},
    {"role": "user", "content": "tea?", "name": HALF},
    {"role": "user", "content": "tea?", HALF: 1},
    [{"role": "system", "content": HALF}, {"role": "user", "content": "tea?"}],
    [{"role": "user", "content": "tea?"}, {"role": "tool", "content": HALF, "tool_call_id": "1"}],
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '"\\ud83d"'}}]},
]


@pytest.mark.parametrize("messages", WITH_HALF, ids=ascii)
async def test_half_a_character_in_a_message_is_refused_everywhere(memory, messages):
    memory.add("I like tea", user_id="alice")
    asynchronous = AsyncMemory.wrap(memory)
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        await asynchronous.answer(messages, user_id="alice")
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        await anext(aiter(asynchronous.stream(messages, user_id="alice")))
    for take in (memory.add, memory.answer, memory.stream, memory.prepare):
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
            take(messages, user_id="alice")
    assert memory.stats().degraded == 0, "it is the call that is wrong"
    assert memory.count(user_id="alice") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"history": [{"role": "user", "content": HALF}]},
        {"filters": {"topic": HALF}},
        {"filters": {"topic": {"in": ["tea", HALF]}}},
        {"filters": {HALF: 1}},
        {"user_id": HALF},
    ],
    ids=ascii,
)
def test_half_a_character_beside_a_question_is_refused(memory, options):
    memory.add("I like tea", user_id="alice")
    with pytest.raises((ConfigurationError, NamespaceError), match=r"surrogate U\+D83D"):
        memory.answer("tea?", **{"user_id": "alice", **options})


def test_half_a_character_in_a_search_a_tool_or_a_setting_is_refused(memory):
    memory.add("I like tea", user_id="alice")
    for call in (
        lambda: memory.search(HALF, user_id="alice"),
        lambda: memory.handles(HALF, user_id="alice"),
        lambda: memory.prepare("tea?", user_id="alice", tools=[{"name": HALF}]),
        lambda: memory.prepare("tea?", user_id="alice", template_kwargs={"today": HALF}),
        lambda: Sampling(stop=(HALF,)),
        lambda: Sampling(extra={"guided": {"choice": [HALF]}}),
        lambda: Frame(system=HALF),
        lambda: Frame(header=f"{HALF}\n"),
    ):
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
            call()


@pytest.mark.parametrize("name", ["top_k", "max_fact_chars"])
@pytest.mark.parametrize("value", ["x", 0, -3, 2.5, None])
def test_counts_are_whole_numbers(make, name, value):
    with pytest.raises(ConfigurationError, match=f"{name}="):
        make(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("path", value) for value in ("", "  ", 5, "\0", b"memory", "~nobody-of-this-name/x")),
        *(("orphan_check_seconds", value) for value in (-1, math.nan, math.inf, "60", True)),
        *(("engine", value) for value in ("http://127.0.0.1:8000", VLLMEngine)),
        *(("window", value) for value in (20, "preceding", PrecedingTurns)),
        *(("frame", value) for value in (None, "Notes:\n")),
        *(("multi_user", value) for value in ("yes", 1, [])),
    ],
    ids=ascii,
)
def test_a_part_of_another_kind_is_refused_before_anything_is_made(make, tmp_path, name, value):
    with pytest.raises(ConfigurationError) as caught:
        make(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [None, 0, 0.5, 60])
def test_seconds_between_checks_may_be_any_or_none(make, seconds):
    make(orphan_check_seconds=seconds)


def test_only_facts_have_handles(memory):
    with pytest.raises(ConfigurationError, match="'x' is not a fact"):
        memory.mint(["x"])


def test_metadata_and_time_leave_a_handle_valid(memory):
    from datetime import UTC, datetime

    (fact,) = memory.add("My dog is called Pepper", user_id="alice")
    (handle,) = memory.mint([fact])
    changed = memory.update(fact.id, metadata={"topic": "pets"}, user_id="alice")
    assert changed.version == 2
    assert memory.resolve(handle, user_id="alice") == [changed]
    changed = memory.update(fact.id, timestamp=datetime(2024, 1, 1, tzinfo=UTC), user_id="alice")
    assert memory.resolve(handle, user_id="alice") == [changed]
    memory.update(fact.id, text="My dog is called Salt", user_id="alice")
    assert memory.resolve(handle, user_id="alice") == []


def test_a_handle_of_a_version_to_come_is_inert(memory):
    (fact,) = memory.add("My dog is called Pepper", user_id="alice")
    from dataclasses import replace

    (handle,) = memory.mint([replace(fact, version=2)])
    assert memory.resolve(handle, user_id="alice") == []


def test_a_closed_memory_does_not_answer(memory):
    memory.add("I like tea", user_id="alice")
    plan = memory.prepare("tea?", user_id="alice")
    stream = memory.complete_stream(plan)
    memory.close()
    for call in (
        lambda: memory.answer("tea?", user_id="alice"),
        lambda: memory.stream("tea?", user_id="alice"),
        lambda: memory.prepare("tea?", user_id="alice"),
        lambda: memory.complete(plan),
        lambda: memory.complete_stream(plan),
        lambda: memory.refresh(plan),
        lambda: memory.search("tea?", user_id="alice"),
        lambda: memory.add("more", user_id="alice"),
    ):
        with pytest.raises(StoreError, match="closed"):
            call()
    stream.close()


def test_another_embedder_is_told_the_ways_out(make, tmp_path):
    memory = make()
    memory.add("I like tea", user_id="alice")
    memory.search("tea", user_id="alice")
    memory.close()

    class Other(FakeEmbedder):
        @property
        def name(self):
            return "other"

    again = make(embedder=Other())
    with pytest.raises(ConfigurationError, match="delete the file") as caught:
        again.search("tea", user_id="alice")
    again.close()
    path = tmp_path / "memory" / "recall.db"
    assert str(path) in str(caught.value)

    # Both ways that the message names work.
    index = HybridRecall(path, Other(), on_mismatch="reembed")
    given = make(index=index, embedder=None)
    assert given.search("tea", user_id="alice")
    given.close()
    index.close()
    path.unlink()
    assert make(embedder=Other()).search("tea", user_id="alice")
