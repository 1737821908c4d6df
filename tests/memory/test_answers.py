from __future__ import annotations

import time
from dataclasses import replace

import pytest

from inferscale_sdk.engines.base import Sampling
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
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import AsyncMemory, PreparedPlan
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import InjectionStatus


@pytest.fixture
def alice(memory, life):
    """A memory with an encoded life."""
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    return memory


def asked(engine):
    return engine.prompt_text(engine.prompts[-1])


# -- what the model reads ------------------------------------------------------------------


def test_an_answer_from_injected_memory(alice, engine, life):
    engine._answer = lambda plan, text: "Pepper" if "Pepper" in text else "?"
    answer = alice.answer("What is my dog called?", user_id="alice", top_k=3)
    assert answer.text == "Pepper"
    assert answer.report.status is InjectionStatus.INJECTED
    assert answer.facts[0].fact.text == life[1]
    assert answer.report.fact_ids == tuple(s.fact.id for s in reversed(answer.facts))
    assert answer.completion.text == answer.text
    assert answer.report.reason == ""


def test_the_best_fact_stands_last(alice, engine, life):
    alice.answer("What is my dog called?", user_id="alice", top_k=4)
    text = asked(engine)
    last = max(life, key=lambda fact: text.rfind(fact))
    assert last == life[1]
    assert text.rfind(life[1]) < text.rfind("What is my dog called?")


def test_injection_and_text_are_the_same_tokens(alice, engine):
    alice.answer("What is my dog called?", user_id="alice")
    alice.answer("What is my dog called?", user_id="alice", inject=False)
    injected, text = engine.prompts[-2:]
    assert injected.token_ids == text.token_ids
    assert injected.segments and not text.segments
    assert injected.cache_salt != text.cache_salt


def test_everything_is_injected_once_the_preamble_is_known(alice):
    alice.answer("my dog?", user_id="alice")
    report = alice.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.INJECTED
    assert report.injected_tokens > report.memory_tokens > 0
    assert report.injected_tokens + report.prefilled_tokens == report.prompt_tokens


def test_facts_without_kv_are_given_as_text(memory, engine, life):
    memory.add(life[:3], user_id="alice")
    memory.wait_encoded()
    (fresh,) = memory.add("My parrot is called Coco", user_id="alice")
    answer = memory.answer("dog parrot peanuts Lisbon", user_id="alice")
    plan = engine.prompts[-1]
    assert plan.live_fact_ids == (fresh.id,)
    assert "Coco" in asked(engine)
    assert len(answer.facts) == 4


def test_history_and_messages(alice, engine):
    alice.answer(
        [{"role": "user", "content": "And my dog?"}],
        history=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
        ],
        user_id="alice",
        max_tokens=7,
    )
    text = asked(engine)
    assert text.index("Be brief.") < text.index("Pepper") < text.index("Hello")
    assert text.index("Hi") < text.index("And my dog?")


def test_answering_remembers_nothing(alice, life):
    alice.answer("my dog?", user_id="alice")
    assert alice.count(user_id="alice") == len(life)


def test_sampling_reaches_the_engine(alice, engine):
    engine._answer = lambda plan, text: "one two three four"
    assert alice.answer("x", user_id="alice", max_tokens=2).text == "one two"
    answer = alice.answer("x", user_id="alice", sampling=Sampling(max_tokens=3))
    assert answer.completion.finish_reason == "length"


def test_an_empty_memory(memory, engine):
    answer = memory.answer("my dog?", user_id="alice")
    assert answer.text == "ok" and answer.facts == ()
    assert answer.report.status is InjectionStatus.NONE
    assert answer.report.reason == ""


def test_users_get_their_own_segments_only(memory, engine, life):
    """Two users with the same words, in other orders: nothing crosses."""
    memory.add(life, user_id="alice")
    memory.add(list(reversed(life)), user_id="bob")
    memory.wait_encoded()
    keys = {
        user: {
            r.key
            for r in memory.store.encodings(
                [f.id for f in memory.get_all(user_id=user)],
                memory._parts.serving.encoder.profile(),
            ).values()
        }
        for user in ("alice", "bob")
    }
    assert keys["alice"].isdisjoint(keys["bob"])
    for i in range(20):
        user = ("alice", "bob")[i % 2]
        memory.answer("dog peanuts chess", user_id=user)
        used = {s.key for s in engine.prompts[-1].segments if s.kind == "fact"}
        assert used and used <= keys[user]
    salts = {p.cache_salt for p in engine.prompts}
    assert len(salts) == 2


# -- handles and plans ---------------------------------------------------------------------


def test_prepare_with_facts_or_handles(alice, engine, life):
    found = alice.search("dog", user_id="alice", top_k=3)
    by_handle = alice.prepare("x?", facts=alice.mint(found), user_id="alice")
    by_fact = alice.prepare("x?", facts=[s.fact for s in found], user_id="alice")
    by_score = alice.prepare("x?", facts=found, user_id="alice")
    by_text = alice.prepare("x?", facts=[" ".join(map(str, alice.mint(found)))], user_id="alice")
    ids = tuple(s.fact.id for s in reversed(found))
    for plan in (by_handle, by_fact, by_score, by_text):
        assert isinstance(plan, PromptPlan) and plan.fact_ids == ids
    assert [s.score for s in by_score.facts] == [s.score for s in found]
    assert alice.prepare("dog?", facts=[], user_id="alice").fact_ids == ()
    assert alice.complete(by_handle).text == "ok"


def test_handles_in_messages_do_not_reach_the_model(alice, engine):
    handle = alice.handles("chess", user_id="alice", top_k=1)[0]
    alice.answer(f"what is {handle}?", user_id="alice", top_k=1)
    assert "ifs:" not in asked(engine)


def test_foreign_handles_and_facts_are_left_out(alice):
    (bees,) = alice.add("I keep bees", user_id="bob")
    facts = [bees, *alice.mint([bees])]
    assert alice.prepare("x?", facts=facts, user_id="alice").fact_ids == ()


def test_tools_and_template_arguments_reach_the_template(alice, engine):
    plan = alice.prepare("x?", user_id="alice", tools=[{"name": "weather"}])
    assert "weather" in engine.prompt_text(plan)


def test_streaming(alice, engine):
    engine._answer = lambda plan, text: "it is Pepper"
    chunks = list(alice.stream("my dog?", user_id="alice"))
    assert "".join(c.text for c in chunks) == "it is Pepper"
    assert [c.completion is not None for c in chunks] == [False, False, True]
    assert chunks[-1].completion.report.fact_ids
    assert chunks[-1].completion.report.ttft_ms is not None


def test_closing_a_stream_stops_the_engine(alice, engine):
    engine._answer = lambda plan, text: "a b c d"
    stream = alice.stream("my dog?", user_id="alice")
    assert next(stream).text == "a "
    stream.close()
    assert engine.cancelled == 1


def test_complete_stream(alice, engine):
    plan = alice.prepare("my dog?", user_id="alice")
    assert "".join(c.text for c in alice.complete_stream(plan)) == "ok"


# -- changes between plan and answer -------------------------------------------------------


@pytest.mark.parametrize("how", ["delete", "hard", "update"])
def test_what_was_deleted_is_not_served_to_a_request_already_planned(alice, engine, life, how):
    plan = alice.prepare("my dog?", user_id="alice")
    fact = next(s.fact for s in plan.facts if s.fact.text == life[1])
    if how == "update":
        alice.update(fact.id, text="My cat is called Salt", user_id="alice")
    else:
        alice.delete(fact.id, user_id="alice", hard=how == "hard")
    alice.complete(plan)
    assert "Pepper" not in asked(engine)
    assert ("Salt" in asked(engine)) == (how == "update")
    list(alice.complete_stream(plan))
    assert "Pepper" not in asked(engine)


def test_kv_made_behind_a_deleted_fact_is_not_used_by_a_request_already_planned(make, engine, life):
    memory = make(window=PrecedingTurns(3, 3))
    facts = memory.add(life, user_id="alice")
    memory.wait_encoded()
    plan = memory.prepare("my dog?", facts=[facts[2]], user_id="alice")
    used = {s.key for s in plan.segments if s.kind == "fact"}
    assert used
    memory.delete(facts[1].id, user_id="alice")
    memory.complete(plan)
    sent = engine.prompts[-1]
    assert sent.fact_ids == (facts[2].id,)
    assert used.isdisjoint(s.key for s in sent.segments)
    assert used <= set(engine.forgotten)


def test_unrelated_changes_do_not_plan_again(alice, engine):
    plan = alice.prepare("my dog?", user_id="alice")
    alice.add("I keep bees", user_id="bob")
    fresh = alice.refresh(plan)
    assert fresh.token_ids == plan.token_ids and fresh.segments == plan.segments
    assert fresh.seq > plan.seq
    assert alice.refresh(fresh) is fresh


def test_plans_made_elsewhere_are_sent_as_they_are(alice, engine):
    plan = PromptPlan(token_ids=(1, 2, 3))
    assert alice.refresh(plan) is plan
    assert alice.complete(plan).text == "ok"


def test_update_reaches_text_vectors_and_kv_on_the_next_request(alice, engine, life):
    fact = alice.search("dog", user_id="alice", top_k=1)[0].fact
    before = dict(engine.segments)
    alice.update(fact.id, text="My dog is now called Basil", user_id="alice")
    assert set(before) - set(engine.segments), "dropped on the server at once"
    answer = alice.answer("What is my dog called?", user_id="alice")
    assert "Basil" in asked(engine) and "Pepper" not in asked(engine)
    assert fact.id in answer.report.fact_ids
    alice.wait_encoded()
    report = alice.answer("What is my dog called?", user_id="alice").report
    assert report.status is InjectionStatus.INJECTED


def test_forgetting_is_durable_when_the_engine_is_away(make, engine, life):
    memory = make()
    facts = memory.add(life, user_id="alice")
    memory.wait_encoded()
    engine.faults.unavailable = True
    memory.delete(facts[1].id, user_id="alice")
    assert memory.stats().forgets_queued
    memory.close()
    engine.faults.unavailable = False
    again = make()
    again.flush(10.0)
    assert again.stats().forgets_queued == 0
    assert engine.forgotten


def test_a_slow_engine_does_not_hold_up_a_deletion(alice, engine, monkeypatch):
    import time

    from inferscale_sdk.memory import serving

    monkeypatch.setattr(serving, "FORGET_WAIT_SECONDS", 0.05)
    engine.faults.delay_s = 1.5
    fact = alice.search("dog", user_id="alice", top_k=1)[0].fact
    started = time.monotonic()
    alice.delete(fact.id, user_id="alice")
    assert time.monotonic() - started < 1.2
    while not engine.forgotten:
        assert time.monotonic() - started < 20.0
        time.sleep(0.05)


# -- what the server has lost --------------------------------------------------------------


def test_lost_segments_are_served_as_text_and_encoded_again(alice, engine):
    alice.answer("my dog?", user_id="alice")
    engine.lose()
    report = alice.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.TEXT and report.reason == "missing"
    assert alice.stats().pending == len(report.fact_ids)
    alice.wait_encoded()
    report = alice.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.INJECTED


def test_observing_a_report_from_elsewhere(alice, engine):
    plan = alice.prepare("my dog?", user_id="alice")
    engine.lose()
    report = engine.generate(plan).report
    alice.observe(report)
    assert alice.stats().pending == len(plan.fact_ids)


# -- failures ------------------------------------------------------------------------------


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


def test_an_unreadable_ledger_means_text(alice, engine, monkeypatch):
    monkeypatch.setattr(alice.store, "encodings", breaking(StoreError("broken")))
    answer = alice.answer("my dog?", user_id="alice")
    assert answer.report.status is InjectionStatus.TEXT
    assert "Pepper" in asked(engine)
    assert "could not be looked up" in answer.report.reason


def test_facts_that_cannot_be_checked_again_are_left_out(alice, engine, monkeypatch):
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


def test_a_model_that_cannot_inject_gets_text(make, life):
    engine = FakeEngine(can_inject=False)
    memory = make(engine=engine)
    memory.add(life, user_id="alice")
    assert not memory.wait_encoded(5.0)
    report = memory.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.TEXT
    assert "Pepper" in asked(engine)


def test_a_prepared_plan_can_be_changed_and_still_sent(alice):
    plan = alice.prepare("my dog?", user_id="alice")
    assert isinstance(replace(plan, cache_salt=plan.cache_salt), PreparedPlan)


# -- deleted while the engine fails ---------------------------------------------------------


@pytest.fixture
def deleting(alice, engine, monkeypatch):
    """The engine takes so long to fail at injecting that a fact is deleted meanwhile."""
    engine.faults.inject_error = EngineError("injection broke")
    receive = engine._receive

    def slow(plan, *args):
        if plan.segments:
            for fact in alice.get_all(user_id="alice"):
                if "Pepper" in fact.text:
                    alice.delete(fact.id, user_id="alice", hard=True)
        return receive(plan, *args)

    monkeypatch.setattr(engine, "_receive", slow)
    return engine


def _check_fallback(engine, report):
    assert len(engine.prompts) == 2, "injected first, then as text"
    failed, sent = engine.prompts
    assert "Pepper" in engine.prompt_text(failed)
    assert "Pepper" not in engine.prompt_text(sent) and not sent.segments
    assert "Lisbon" in engine.prompt_text(sent), "the other facts are still there"
    assert "injection failed" in report.reason


def test_the_text_that_stands_in_has_no_deleted_fact(alice, deleting):
    answer = alice.answer("my dog and Lisbon?", user_id="alice")
    _check_fallback(deleting, answer.report)
    assert all("Pepper" not in scored.fact.text for scored in answer.facts)


def test_the_streamed_text_that_stands_in_has_no_deleted_fact(alice, deleting):
    *_, last = alice.stream("my dog and Lisbon?", user_id="alice")
    _check_fallback(deleting, last.completion.report)


async def test_the_async_texts_that_stand_in_have_no_deleted_fact(alice, deleting):
    memory = AsyncMemory.wrap(alice)
    answer = await memory.answer("my dog and Lisbon?", user_id="alice")
    _check_fallback(deleting, answer.report)


async def test_the_async_stream_that_stands_in_has_no_deleted_fact(alice, deleting):
    memory = AsyncMemory.wrap(alice)
    chunks = [chunk async for chunk in memory.stream("my dog and Lisbon?", user_id="alice")]
    _check_fallback(deleting, chunks[-1].completion.report)


def test_the_engine_hears_of_segments_before_the_prompt_is_made(make_memory, server):
    memory = make_memory(prefetch=True)
    memory.add(["Cats like tuna.", "Dogs like bones."], user_id="ada")
    assert memory.wait_encoded(timeout=20)
    answer = memory.answer("What do cats like?", user_id="ada")
    assert answer.report.injected_tokens > 0
    deadline = time.monotonic() + 5
    while len(server.connector.prefetched) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert set(server.connector.prefetched) <= set(server.connector.segments)


def test_hints_that_are_lost_cost_nothing(make_memory, server):
    memory = make_memory(prefetch=True)
    memory.add("Cats like tuna.", user_id="ada")
    assert memory.wait_encoded(timeout=20)
    memory.engine._hints.close()
    assert memory.answer("What do cats like?", user_id="ada").report.injected_tokens > 0
