"""The parts of the speed measurements: spread, order, clock, corpus, load."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm
from inferscale_sdk.bench.speed.corpus import load_corpus
from inferscale_sdk.bench.speed.environment import environment
from inferscale_sdk.bench.speed.interleave import interleave
from inferscale_sdk.bench.speed.load import arrivals, closed_load, poisson_load
from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.timing import timed
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.testing.fake_engine import FakeEngine


def words(text="one two three four"):
    return FakeEngine(lambda _plan, _text: text)


def test_spread_of_known_values():
    spread = Spread.of([float(i) for i in reversed(range(101))])

    assert (spread.p10, spread.p25, spread.median, spread.p75, spread.p90) == (10, 25, 50, 75, 90)
    assert (spread.p99, spread.mean, spread.n) == (99, 50, 101)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 1)
    assert Spread.of([1.0, 2.0]).p99 == 2.0
    assert Spread.maybe([None, 3.0, None]) == Spread.of([3.0])
    assert Spread.maybe([None]) is None


def test_a_round_asks_everything_once_with_text_before_the_ceiling():
    arms = [Arm.PROMPT, Arm.DISK, Arm.INJECT, Arm.CACHED]

    order = list(interleave(range(30), arms, seed=3))

    assert Counter(order) == Counter((case, arm) for case in range(30) for arm in arms)
    groups = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert all(len({case for case, _ in group}) == 1 for group in groups)
    places = [[arm for _, arm in group] for group in groups]
    assert all(p.index(Arm.PROMPT) < p.index(Arm.CACHED) for p in places)
    assert {p.index(Arm.DISK) for p in places} == {0, 1, 2, 3}
    assert order == list(interleave(range(30), arms, seed=3))
    assert order != list(interleave(range(30), arms, seed=4))


def test_the_clock_keeps_vllms_definitions():
    engine = words()
    engine.faults.delay_s = 0.02

    seen = timed(engine, lambda: PromptPlan((1, 2, 3)), Sampling(max_tokens=8))

    assert seen.completion.text == "one two three four"
    assert len(seen.itl_ms) == 3
    assert seen.tpot_ms == pytest.approx((seen.e2el_ms - seen.ttft_ms) / 3)
    assert seen.e2el_ms >= 20
    assert seen.query_to_first_token_ms == seen.prepare_ms + seen.ttft_ms


def test_an_answer_of_one_token_has_no_time_per_further_token():
    seen = timed(words("yes"), lambda: PromptPlan((1,)), Sampling(max_tokens=1))

    assert seen.tpot_ms is None and seen.itl_ms == ()


def test_every_user_sends_one_request_after_another():
    engine = words()
    plans = [[PromptPlan((user,), cache_salt=f"{user}{n}") for n in range(2)] for user in range(5)]
    steps = []

    load = asyncio.run(closed_load(engine, plans, Sampling(max_tokens=8), lambda: steps.append(1)))

    assert len(load.answers) == len(steps) == 10
    sent = [plan.cache_salt for plan in engine.prompts]
    assert all(sent.index(f"{user}0") < sent.index(f"{user}1") for user in range(5))
    figures = load.figures()
    assert figures["requests"] == 10
    assert figures["output_tokens_per_second"] == pytest.approx(40 / load.seconds, rel=1e-2)
    assert load.within(1e9) == 1.0 and load.within(0.0) == 0.0


def test_poisson_arrivals_are_the_same_for_every_arm_and_come_at_the_rate():
    due = arrivals(4000, 20.0, seed=1)

    assert due == arrivals(4000, 20.0, seed=1) != arrivals(4000, 20.0, seed=2)
    assert due[0] == 0.0 and due == sorted(due)
    assert due[-1] == pytest.approx(4000 / 20.0, rel=0.1)


def test_a_poisson_load_waits_for_its_arrivals():
    plans = [PromptPlan((n,)) for n in range(5)]

    load = asyncio.run(
        poisson_load(words(), plans, Sampling(max_tokens=2), per_second=100.0, seed=0)
    )

    assert len(load.answers) == 5
    assert load.seconds >= arrivals(5, 100.0, 0)[-1]


def test_invented_facts_are_many_and_none_twice():
    corpus = load_corpus(None)

    facts = corpus.facts(len(corpus.texts) + 2)

    assert len(set(facts)) == len(facts) > 10_000
    assert facts[-1] == f"{facts[1]} (note 2)"
    assert corpus == load_corpus(None) != load_corpus(None, seed=1)


def test_personas_are_read_from_whatever_lists_they_stand_in(tmp_path):
    path = tmp_path / "personas.json"
    people = {"train": [{"Speaker 1": ["I sail.", "I bake."], "Speaker 2": ["I bake."], "n": 0}]}
    path.write_text(json.dumps(people))

    assert load_corpus(path).texts == ("I sail.", "I bake.")


@pytest.mark.parametrize("content", ["no json", '{"n": 3}'])
def test_a_file_without_facts_is_named(tmp_path, content):
    path = tmp_path / "personas.json"
    path.write_text(content)

    with pytest.raises(ConfigurationError, match=r"personas\.json"):
        load_corpus(path)


def test_the_environment_says_what_ran():
    seen = json.loads(json.dumps(environment({"model": "smol"})))

    assert seen["cores"] >= 1 and seen["cpu"] and seen["python"]
    assert seen["server"] == {"model": "smol"}
    assert "torch" in seen["packages"]


def test_the_arms_everybody_knows():
    assert [arm.value for arm in BASIC_ARMS] == ["prompt", "inject", "cached"]
