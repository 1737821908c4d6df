"""Facts that change or are lost between a plan and its answer."""

from __future__ import annotations

import time

import pytest

from inferscale_sdk.errors import EngineError
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import AsyncMemory
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.types import InjectionStatus

# -- changes between plan and answer -------------------------------------------------------


@pytest.mark.parametrize("how", ["delete", "hard", "update"])
def test_what_was_deleted_is_not_served_to_a_request_already_planned(
    alice, engine, life, how, asked
):
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


def test_update_reaches_text_vectors_and_kv_on_the_next_request(alice, engine, life, asked):
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


# -- deleted while the engine fails --------------------------------------------------------


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
