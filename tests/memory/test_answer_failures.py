"""What becomes of an answer when recall, the store or the engine fails."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import (
    ConfigurationError,
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    IncompatibleModel,
    MissingDependency,
    StoreError,
)
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import InjectionStatus


def breaking(error):
    def broken(*_, **__):
        raise error

    return broken


@pytest.mark.parametrize("error", [StoreError("secret"), RuntimeError("secret"), OSError("secret")])
def test_failing_recall_answers_without_memory(alice, engine, error, caplog, monkeypatch):
    monkeypatch.setattr(alice._parts.recaller, "search", breaking(error))
    answer = alice.answer("my dog?", user_id="alice")
    assert answer.text == "ok"
    assert answer.report.status is InjectionStatus.NONE
    assert f"recall failed ({type(error).__name__})" in answer.report.reason
    assert "recall failed" in caplog.text and "secret" not in caplog.text
    assert alice.stats().degraded == 1
    last = list(alice.stream("my dog?", user_id="alice"))[-1]
    assert "recall failed" in last.completion.report.reason


@pytest.mark.parametrize("kwargs", [{"top_k": 0}, {"filters": {"a": {"near": 1}}}])
def test_mistakes_of_the_caller_are_not_swallowed(alice, kwargs):
    with pytest.raises(ConfigurationError):
        alice.answer("my dog?", user_id="alice", **kwargs)


def test_a_missing_embedder_is_a_mistake_in_the_set_up(alice, monkeypatch):
    error = MissingDependency("sentence-transformers", "recall", "embedding")
    monkeypatch.setattr(alice._parts.recaller, "search", breaking(error))
    with pytest.raises(MissingDependency, match="recall"):
        alice.answer("my dog?", user_id="alice")


def test_failing_recall_raises_if_wanted(make, monkeypatch):
    memory = make(on_error="raise")
    monkeypatch.setattr(memory._parts.recaller, "search", breaking(StoreError("broken")))
    with pytest.raises(StoreError, match="broken"):
        memory.answer("my dog?", user_id="alice")


def test_an_unreadable_ledger_means_text(alice, engine, monkeypatch, asked):
    monkeypatch.setattr(alice.store, "encodings", breaking(StoreError("broken")))
    answer = alice.answer("my dog?", user_id="alice")
    assert answer.report.status is InjectionStatus.TEXT
    assert "Pepper" in asked(engine)
    assert "could not be looked up" in answer.report.reason


def test_facts_that_cannot_be_checked_again_are_left_out(alice, engine, monkeypatch, asked):
    plan = alice.prepare("my dog?", user_id="alice")
    monkeypatch.setattr(alice.store, "last_seq", breaking(StoreError("broken")))
    completion = alice.complete(plan)
    assert "Pepper" not in asked(engine)
    assert "left out" in completion.report.reason


@pytest.mark.parametrize("error", [EngineError("injection broke"), IncompatibleModel("no")])
def test_failing_injection_means_text(alice, engine, error):
    engine.faults.inject_error = error
    answer = alice.answer("my dog?", user_id="alice")
    assert answer.report.status is InjectionStatus.TEXT
    assert "injection failed" in answer.report.reason
    injected, text = engine.prompts[-2:]
    assert injected.token_ids == text.token_ids
    assert not text.segments and text.cache_salt != injected.cache_salt
    chunks = list(alice.stream("my dog?", user_id="alice"))
    assert "injection failed" in chunks[-1].completion.report.reason


def test_failing_injection_raises_if_wanted(make, engine, life):
    memory = make(on_error="raise")
    memory.add(life, user_id="alice")
    memory.wait_encoded()
    engine.faults.inject_error = EngineError("injection broke")
    with pytest.raises(EngineError, match="injection broke"):
        memory.answer("my dog?", user_id="alice")


@pytest.mark.parametrize("fault", ["unavailable", "timeout"])
def test_an_engine_that_is_away_is_no_matter_of_memory(alice, engine, fault):
    alice.answer("my dog?", user_id="alice")
    n = len(engine.prompts)
    info = engine.info()
    engine.info = lambda *, refresh=False: info
    setattr(engine.faults, fault, True)
    with pytest.raises((EngineUnavailable, EngineTimeout)):
        alice.answer("my dog?", user_id="alice")
    assert len(engine.prompts) == n


def test_a_stream_that_breaks_later_is_not_started_again(alice, engine):
    engine._answer = lambda plan, text: "a b c"
    engine.faults.break_stream_after = 1
    got = []
    with pytest.raises(EngineError, match="break"):
        for chunk in alice.stream("my dog?", user_id="alice"):
            got.append(chunk.text)
    assert got == ["a "]


def test_memory_makes_room_for_the_conversation(make, life):
    engine = FakeEngine(max_model_len=320)
    memory = make(engine=engine)
    memory.add(life, user_id="alice")
    answer = memory.answer("my dog?", user_id="alice", max_tokens=32)
    assert answer.text == "ok"
    assert 0 < len(answer.facts) < len(life)
    assert answer.facts[0].fact.text == life[1], "the best stay"
    assert "left out" in answer.report.reason


def test_a_conversation_that_does_not_fit_is_an_error(alice, engine):
    engine._max_model_len = 400
    with pytest.raises(ContextOverflow, match="400"):
        alice.answer("long " * 200, user_id="alice")


def test_a_model_that_cannot_inject_gets_text(make, life, asked):
    engine = FakeEngine(can_inject=False)
    memory = make(engine=engine)
    memory.add(life, user_id="alice")
    assert not memory.wait_encoded(5.0)
    report = memory.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.TEXT
    assert "Pepper" in asked(engine)
