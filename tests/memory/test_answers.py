"""Answers: what the model reads, plans and streams."""

from __future__ import annotations

import time
from dataclasses import replace

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.memory import PreparedPlan
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.types import InjectionStatus

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


def test_the_best_fact_stands_last(alice, engine, life, asked):
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


def test_facts_without_kv_are_given_as_text(memory, engine, life, asked):
    memory.add(life[:3], user_id="alice")
    memory.wait_encoded()
    (fresh,) = memory.add("My parrot is called Coco", user_id="alice")
    answer = memory.answer("dog parrot peanuts Lisbon", user_id="alice")
    plan = engine.prompts[-1]
    assert plan.live_fact_ids == (fresh.id,)
    assert "Coco" in asked(engine)
    assert len(answer.facts) == 4


def test_history_and_messages(alice, engine, asked):
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


def test_handles_in_messages_do_not_reach_the_model(alice, engine, asked):
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


def test_a_prepared_plan_can_be_changed_and_still_sent(alice):
    plan = alice.prepare("my dog?", user_id="alice")
    assert isinstance(replace(plan, cache_salt=plan.cache_salt), PreparedPlan)


# -- segments named ahead of a request -----------------------------------------------------


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
    memory.engine._controls.close()
    assert memory.answer("What do cats like?", user_id="ada").report.injected_tokens > 0


# -- why as text ---------------------------------------------------------------------------


def test_the_report_says_that_nothing_is_encoded_yet(memory):
    memory.add("My dog is called Pepper", user_id="alice")
    report = memory.answer("my dog?", user_id="alice").report
    assert (report.status, report.reason) == (InjectionStatus.TEXT, "not encoded yet")


def test_the_report_says_why_the_engine_does_not_inject(alice, engine):
    engine._can_inject = False
    report = alice.answer("my dog?", user_id="alice").report
    assert report.status is InjectionStatus.TEXT
    assert "can_inject=False" in report.reason


def test_text_that_was_asked_for_needs_no_reason(alice):
    assert alice.answer("my dog?", user_id="alice", inject=False).report.reason == ""
