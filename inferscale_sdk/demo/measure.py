"""The order of the requests, and the clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm, plan_for
from inferscale_sdk.bench.speed.interleave import interleave
from inferscale_sdk.bench.speed.timing import Timed, collector_paused, timed
from inferscale_sdk.demo.report import Sample
from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.prompt.base import PromptPlan

__all__ = ["Measurement", "PlannedQuestion", "ask_all", "count_requests", "schedule"]

Step = Callable[[], None]

_WARMED_UP = (Arm.INJECT,)


@dataclass(frozen=True, slots=True)
class PlannedQuestion:
    """One question at one k, recalled and planned beforehand: recall is not what is compared.

    Args:
        question: Number of the question, from 0.
        k: Facts asked for.
        plan: The prompt.
        recalled: Texts of the facts in it.
    """

    question: int
    k: int
    plan: PromptPlan
    recalled: frozenset[str] = frozenset()


@dataclass(slots=True)
class Measurement:
    """What was seen.

    Args:
        samples: The timed requests.
        answers: What was said in the first round, by question, k and arm.
        injected_tokens: Over all requests, the warm-up's too.
    """

    samples: list[Sample] = field(default_factory=list)
    answers: dict[tuple[int, int, Arm], str] = field(default_factory=dict)
    injected_tokens: int = 0


def schedule(
    questions: Sequence[PlannedQuestion], seed: int
) -> Iterator[tuple[PlannedQuestion, Arm]]:
    """One round: every question at every k in every arm, shuffled; see :func:`interleave`."""
    return interleave(questions, BASIC_ARMS, seed)


def ask_all(
    engine: Engine,
    questions: Sequence[PlannedQuestion],
    *,
    rounds: int,
    answer_tokens: int,
    seed: int = 0,
    step: Step = lambda: None,
) -> Measurement:
    """Warm up, then ask everything ``rounds`` times against the clock.

    The warm-up brings stored segments into memory; the arm that computes everything has nothing to
    warm up but the server itself. In the first timed round it computes each prompt under the
    ceiling's salt, where nothing is cached yet, so that the ceiling finds it there. That round goes
    on to the end of the answers, the others stop after the first token.

    Args:
        engine: The engine.
        questions: What to ask; each plan must have segments.
        rounds: Timed repetitions of every request.
        answer_tokens: Length of an answer at most.
        seed: Of the order.
        step: Called after every request, :func:`count_requests` times.

    Raises:
        EngineError: A plan has no segments, or an answer carries no time to first token.
    """
    seen = Measurement()
    fixed_salt = secrets.token_hex(16)

    def ask(
        question: PlannedQuestion, arm: Arm, sampling: Sampling, *, leave: bool = False
    ) -> Timed:
        sent_as = Arm.CACHED if leave and arm is Arm.PROMPT else arm
        done = timed(engine, lambda: plan_for(sent_as, question.plan, fixed_salt), sampling)
        seen.injected_tokens += done.report.injected_tokens
        step()
        return done

    first_token = Sampling(max_tokens=1)
    with collector_paused():
        for question in questions:
            for arm in _WARMED_UP:
                ask(question, arm, first_token)
        for number in range(rounds):
            whole = number == 0
            sampling = Sampling(max_tokens=answer_tokens, stop=("\n",)) if whole else first_token
            for question, arm in schedule(questions, seed + number):
                done = ask(question, arm, sampling, leave=whole)
                seen.samples.append(_sample(question, arm, done))
                if whole:
                    seen.answers[question.question, question.k, arm] = done.completion.text.strip()
    return seen


def count_requests(n_questions: int, rounds: int) -> int:
    """How many requests :func:`ask_all` sends."""
    return n_questions * (len(_WARMED_UP) + rounds * len(BASIC_ARMS))


def _sample(question: PlannedQuestion, arm: Arm, done: Timed) -> Sample:
    report = done.report
    return Sample(
        arm=arm,
        k=question.k,
        question=question.question,
        ttft_ms=done.ttft_ms,
        memory_tokens=question.plan.memory_tokens,
        prefilled_tokens=report.prefilled_tokens,
        injected_tokens=report.injected_tokens,
        cached_tokens=report.cached_tokens,
    )
