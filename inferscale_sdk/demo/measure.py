"""The order of the requests, and the clock."""

from __future__ import annotations

import gc
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferscale_sdk.demo.arms import Arm, plan_for
from inferscale_sdk.demo.report import Sample
from inferscale_sdk.engines.base import Completion, Engine, Sampling
from inferscale_sdk.errors import EngineError
from inferscale_sdk.prompt.base import PromptPlan

__all__ = ["Measurement", "PlannedQuestion", "ask_all", "schedule"]

Step = Callable[[], None]


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
        answers: What was said in the first, untimed round, by question, k and arm.
        injected_tokens: Over all requests, the untimed ones too.
    """

    samples: list[Sample] = field(default_factory=list)
    answers: dict[tuple[int, int, Arm], str] = field(default_factory=dict)
    injected_tokens: int = 0


def schedule(
    questions: Sequence[PlannedQuestion], seed: int
) -> Iterator[tuple[PlannedQuestion, Arm]]:
    """One round: every question at every k in every arm, shuffled.

    The arms of one question follow one another in random order, so that whatever slows the
    machine down for a while slows all three.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    shuffled = list(questions)
    rng.shuffle(shuffled)
    for question in shuffled:
        for arm in rng.sample(list(Arm), len(Arm)):
            yield question, arm


def ask_all(
    engine: Engine,
    questions: Sequence[PlannedQuestion],
    *,
    rounds: int,
    answer_tokens: int,
    seed: int = 0,
    step: Step = lambda: None,
) -> Measurement:
    """Ask everything once for the answers, then ``rounds`` times against the clock.

    The first round also warms up: it leaves the ceiling's prompts in vLLM's prefix cache and
    brings injected segments into memory. The timed rounds stop after the first tokens.

    Args:
        engine: The engine.
        questions: What to ask; each plan must have segments.
        rounds: Timed repetitions of every request.
        answer_tokens: Length of an answer at most.
        seed: Of the order.
        step: Called after every request.

    Raises:
        EngineError: A plan has no segments, or an answer carries no time to first token.
    """
    seen = Measurement()
    fixed_salt = secrets.token_hex(16)
    answering = Sampling(max_tokens=answer_tokens, stop=("\n",))
    timing = Sampling(max_tokens=1)
    with _collector_paused():
        for round_number in range(rounds + 1):
            first = round_number == 0
            for question, arm in schedule(questions, seed + round_number):
                plan = plan_for(arm, question.plan, fixed_salt)
                done = _ask(engine, plan, answering if first else timing)
                seen.injected_tokens += done.report.injected_tokens
                if first:
                    seen.answers[question.question, question.k, arm] = done.text.strip()
                else:
                    seen.samples.append(_sample(question, arm, done))
                step()
    return seen


def _ask(engine: Engine, plan: PromptPlan, sampling: Sampling) -> Completion:
    done: Completion | None = None
    for chunk in engine.stream(plan, sampling):
        done = chunk.completion or done
    if done is None:
        raise EngineError("the engine's stream ended without saying how it went")
    return done


def _sample(question: PlannedQuestion, arm: Arm, done: Completion) -> Sample:
    report = done.report
    if report.ttft_ms is None:
        raise EngineError("the engine did not time the first token of a streamed answer")
    return Sample(
        arm=arm,
        k=question.k,
        question=question.question,
        ttft_ms=report.ttft_ms,
        memory_tokens=question.plan.memory_tokens,
        prefilled_tokens=report.prefilled_tokens,
        injected_tokens=report.injected_tokens,
        cached_tokens=report.cached_tokens,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Client and server share the processors; a garbage collection here shows as latency there."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
