"""Many users at once, and arrivals at random: requests per second, and how soon each answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.timing import Timed, atimed
from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.prompt.base import PromptPlan

__all__ = ["Load", "arrivals", "closed_load", "poisson_load"]

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Load:
    """One load that was served.

    Args:
        answers: In the order in which they ended.
        seconds: From the first request to the last answer.
    """

    answers: tuple[Timed, ...]
    seconds: float

    @property
    def requests_per_second(self) -> float:
        """Request throughput."""
        return len(self.answers) / self.seconds

    def within(self, objective_ms: float) -> float:
        """The share of requests whose first token came in time."""
        met = sum(one.ttft_ms <= objective_ms for one in self.answers)
        return met / len(self.answers)

    def figures(self) -> dict[str, object]:
        """For JSON."""
        n_tokens = sum(one.completion.completion_tokens for one in self.answers)
        tpot = Spread.maybe(one.tpot_ms for one in self.answers)
        injected = sum(one.report.injected_tokens for one in self.answers)
        return {
            "requests": len(self.answers),
            "seconds": round(self.seconds, 3),
            "requests_per_second": round(self.requests_per_second, 4),
            "output_tokens_per_second": round(n_tokens / self.seconds, 2),
            "ttft_ms": Spread.of([one.ttft_ms for one in self.answers]).as_dict(),
            "e2el_ms": Spread.of([one.e2el_ms for one in self.answers]).as_dict(),
            **({"tpot_ms": tpot.as_dict()} if tpot else {}),
            "prompt_tokens": sum(one.report.prompt_tokens for one in self.answers),
            "injected_tokens": injected,
            "cached_tokens": sum(one.report.cached_tokens for one in self.answers),
        }


async def closed_load(
    engine: Engine,
    plans: Sequence[Sequence[PromptPlan]],
    sampling: Sampling,
    step: Step = lambda: None,
) -> Load:
    """Every user sends their requests one after another, all users at once.

    Args:
        engine: Who answers.
        plans: By user, in order.
        sampling: Of every answer.
        step: Called after each answer.
    """
    answers: list[Timed] = []

    async def user(own: Sequence[PromptPlan]) -> None:
        for plan in own:
            answers.append(await atimed(engine, plan, sampling))
            step()

    return await _all([user(own) for own in plans], answers)


async def poisson_load(
    engine: Engine,
    plans: Sequence[PromptPlan],
    sampling: Sampling,
    *,
    per_second: float,
    seed: int,
    step: Step = lambda: None,
) -> Load:
    """Requests that arrive independently of one another and of the answers.

    Args:
        engine: Who answers.
        plans: In order of arrival.
        sampling: Of every answer.
        per_second: Mean arrivals a second.
        seed: Of the arrivals; the same for all arms.
        step: Called after each answer.
    """
    answers: list[Timed] = []

    async def one(plan: PromptPlan, at: float) -> None:
        await asyncio.sleep(at)
        answers.append(await atimed(engine, plan, sampling))
        step()

    due = arrivals(len(plans), per_second, seed)
    return await _all([one(plan, at) for plan, at in zip(plans, due, strict=True)], answers)


def arrivals(n: int, per_second: float, seed: int) -> list[float]:
    """Seconds from the start at which ``n`` requests arrive; the gaps are exponential."""
    draw = random.Random(seed)  # noqa: S311 - a load, not a secret
    at, due = 0.0, []
    for _ in range(n):
        due.append(at)
        at += draw.expovariate(per_second)
    return due


async def _all(work: Sequence[Awaitable[None]], answers: list[Timed]) -> Load:
    started = time.perf_counter()
    await asyncio.gather(*work)
    return Load(tuple(answers), time.perf_counter() - started)
