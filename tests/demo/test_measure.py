from collections import Counter

import pytest

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm, plan_for
from inferscale_sdk.demo.measure import PlannedQuestion, ask_all, count_requests, schedule
from inferscale_sdk.demo.report import cells_of
from inferscale_sdk.errors import EngineError
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.prompt.base import PlannedSegment, PromptPlan
from inferscale_sdk.protocol import salt_matches
from inferscale_sdk.testing.fake_engine import FakeEngine

TOKENS = tuple(range(30))


def plan(n_facts: int) -> PromptPlan:
    """Segments of five tokens each over the first tokens of a prompt of thirty."""
    return PromptPlan(
        token_ids=TOKENS,
        segments=tuple(PlannedSegment(f"{i:040x}", 5, "fact", f"f{i}") for i in range(n_facts)),
        cache_salt="planned",
        fact_ids=tuple(f"f{i}" for i in range(n_facts)),
        memory_tokens=5 * n_facts,
        fingerprint="fake-model",
    )


def engine_with_segments(n: int) -> FakeEngine:
    engine = FakeEngine(answer=lambda _plan, _text: "walnuts of course")
    for i in range(n):
        engine.segments[f"{i:040x}"] = token_digest(TOKENS[5 * i : 5 * i + 5])
    return engine


def test_the_arms_carry_the_same_tokens_and_only_one_injects():
    requests = {arm: plan_for(arm, plan(2), "run") for arm in BASIC_ARMS}

    assert {request.token_ids for request in requests.values()} == {TOKENS}
    assert [arm for arm in requests if requests[arm].segments] == [Arm.INJECT]


def test_only_the_ceiling_can_find_itself_in_the_prefix_cache():
    salts = {
        arm: [plan_for(arm, plan(2), "run").cache_salt for _ in range(3)] for arm in BASIC_ARMS
    }

    assert len(set(salts[Arm.PROMPT])) == 3
    assert len(set(salts[Arm.INJECT])) == 3
    assert len(set(salts[Arm.CACHED])) == 1


def test_an_injecting_request_stays_bound_to_its_segments():
    request = plan_for(Arm.INJECT, plan(3), "run")

    assert salt_matches(request.cache_salt, [segment.key for segment in request.segments])


def test_a_plan_of_plain_text_is_refused():
    with pytest.raises(EngineError, match="inferscale doctor"):
        plan_for(Arm.INJECT, PromptPlan(token_ids=TOKENS, memory_tokens=5), "run")


def test_a_round_asks_everything_once_and_keeps_the_arms_of_a_question_together():
    questions = [PlannedQuestion(q, k, plan(k)) for q in range(4) for k in (1, 3)]

    order = list(schedule(questions, seed=1))

    assert Counter((q.question, q.k, arm) for q, arm in order) == Counter(
        (q.question, q.k, arm) for q in questions for arm in BASIC_ARMS
    )
    for start in range(0, len(order), 3):
        assert len({id(q) for q, _ in order[start : start + 3]}) == 1
    assert order == list(schedule(questions, seed=1))
    assert order != list(schedule(questions, seed=2))


def test_counts_every_injected_token_and_times_all_but_the_warm_up():
    engine = engine_with_segments(3)
    questions = [PlannedQuestion(q, k, plan(k)) for q in range(2) for k in (1, 3)]
    steps = []

    seen = ask_all(engine, questions, rounds=2, answer_tokens=8, step=lambda: steps.append(None))

    assert len(steps) == len(engine.prompts) == count_requests(len(questions), rounds=2)
    assert len(seen.samples) == len(questions) * len(BASIC_ARMS) * 2
    assert seen.injected_tokens == 3 * 2 * (5 + 15)
    by_cell = {(cell.arm, cell.k): cell for cell in cells_of(seen.samples)}
    assert by_cell[Arm.INJECT, 3].injected_tokens == 15
    assert by_cell[Arm.INJECT, 3].prefilled_tokens == 15
    assert by_cell[Arm.PROMPT, 3].prefilled_tokens == 30
    assert by_cell[Arm.PROMPT, 3].ttft_ms.n == 4


def test_memory_as_text_leaves_each_prompt_for_the_ceiling():
    engine = engine_with_segments(1)
    questions = [PlannedQuestion(q, 1, plan(1)) for q in range(3)]

    ask_all(engine, questions, rounds=2, answer_tokens=8)

    first, second = (
        [p.cache_salt for p in engine.prompts[3 + 9 * n : 12 + 9 * n]] for n in range(2)
    )
    kept = [salt for salt in first if "cached" in salt]
    assert len(kept) == 2 * 3 and len(set(kept)) == 1
    assert [salt for salt in second if "cached" in salt] == kept[:3]
    assert len({salt for salt in second if "prompt" in salt}) == 3


def test_the_ceiling_never_comes_before_memory_as_text():
    questions = [PlannedQuestion(q, 1, plan(1)) for q in range(40)]
    arms = [arm for _, arm in schedule(questions, seed=3)]
    rounds = [arms[i : i + 3] for i in range(0, len(arms), 3)]
    assert all(r.index(Arm.PROMPT) < r.index(Arm.CACHED) for r in rounds)
    assert {r.index(Arm.INJECT) for r in rounds} == {0, 1, 2}


def test_every_answer_is_kept_whole():
    engine = engine_with_segments(1)

    seen = ask_all(engine, [PlannedQuestion(0, 1, plan(1))], rounds=2, answer_tokens=8)

    assert seen.answers == {(0, 1, arm): "walnuts of course" for arm in BASIC_ARMS}
