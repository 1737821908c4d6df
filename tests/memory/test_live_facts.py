"""The best facts as text behind the injected ones."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import ConfigurationError


@pytest.mark.parametrize("live", [0, 1, 2, 50])
def test_the_best_facts_stay_text_and_the_tokens_stay_the_same(make, engine, life, live):
    memory = make(live_facts=live)
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    for _ in range(2):  # the preamble is known from the second request on
        answer = memory.answer("What is my dog called?", user_id="alice", top_k=3)
    best_first = [scored.fact.id for scored in answer.facts]
    plan = engine.prompts[-1]
    injected = [s.fact_id for s in plan.segments if s.kind == "fact"]
    assert injected == list(reversed(best_first[live:]))
    assert plan.live_fact_ids == tuple(reversed(best_first[:live]))
    text = memory.prepare("What is my dog called?", user_id="alice", top_k=3, inject=False)
    assert plan.token_ids == text.token_ids


@pytest.mark.parametrize(
    ("live", "encoded", "reason"),
    [
        (1, False, "not encoded yet"),
        (1, True, ""),
        (2, False, "left as text because of live_facts"),
        (2, True, "left as text because of live_facts"),
        (50, True, "left as text because of live_facts"),
    ],
)
def test_the_report_says_what_keeps_the_facts_text(make, life, live, encoded, reason):
    memory = make(live_facts=live)
    memory.add(life, user_id="alice")
    if encoded:
        assert memory.wait_encoded(10.0)
    answer = memory.answer("What is my dog called?", user_id="alice", top_k=2)
    assert answer.report.reason == reason


@pytest.mark.parametrize("live", [-1, 1.5, True])
def test_bad_numbers_are_refused(make, live):
    with pytest.raises(ConfigurationError, match="live_facts"):
        make(live_facts=live)


@pytest.mark.parametrize("order", ["best-last", "best-first", "time"])
def test_injected_and_live_facts_each_stand_in_the_wanted_order(make, engine, life, order):
    memory = make(live_facts=2, order=order)
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    answer = memory.answer("What is my dog called?", user_id="alice", top_k=5)
    best_first = [scored.fact for scored in answer.facts]
    live, injected = best_first[:2], best_first[2:]
    for facts in (live, injected):
        if order == "best-last":
            facts.reverse()
        elif order == "time":
            facts.sort(key=lambda fact: fact.position)
    plan = engine.prompts[-1]
    assert plan.live_fact_ids == tuple(fact.id for fact in live)
    assert [s.fact_id for s in plan.segments if s.kind == "fact"] == [f.id for f in injected]


def test_an_unknown_order_is_refused(make):
    with pytest.raises(ConfigurationError, match="order='worst' must be one of"):
        make(order="worst")


@pytest.mark.parametrize(("top_k", "n_live"), [(1, 0), (2, 1), (5, 1)])
def test_by_default_the_best_of_several_facts_stays_text(make, engine, life, top_k, n_live):
    memory = make(live_facts=None)
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    answer = memory.answer("What is my dog called?", user_id="alice", top_k=top_k)
    plan = engine.prompts[-1]
    assert plan.live_fact_ids == tuple(scored.fact.id for scored in answer.facts[:n_live])
    assert sum(segment.kind == "fact" for segment in plan.segments) == top_k - n_live


def test_by_default_a_long_fact_is_injected(make, engine):
    memory = make(live_facts=None)
    memory.add(["My dog " + "barks and " * 80 + "sleeps.", "I live in Porto."], user_id="alice")
    assert memory.wait_encoded(10.0)
    memory.answer("What does my dog do?", user_id="alice", top_k=2)
    plan = engine.prompts[-1]
    assert plan.live_fact_ids == ()
    assert sum(segment.kind == "fact" for segment in plan.segments) == 2


@pytest.mark.parametrize("order", ["best-first", "time", "session"])
def test_a_live_fact_does_not_break_an_order_that_was_asked_for(make, engine, life, order):
    memory = make(live_facts=None, order=order)
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    answer = memory.answer("What is my dog called?", user_id="alice", top_k=5)
    plan = engine.prompts[-1]
    wanted = [scored.fact for scored in answer.facts]
    if order != "best-first":
        wanted.sort(key=lambda fact: fact.position)
    assert plan.fact_ids == tuple(fact.id for fact in wanted)
    assert sum(segment.kind == "fact" for segment in plan.segments) == 5
