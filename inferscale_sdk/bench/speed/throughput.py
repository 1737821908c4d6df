"""``inferscale bench throughput``: how many requests a second, text against injection.

All plans of a load are made before it begins: client and server may share the processors, and
recall is the same for every arm.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm, plan_for
from inferscale_sdk.bench.speed.bed import ASKED, Bed
from inferscale_sdk.bench.speed.corpus import QUESTIONS
from inferscale_sdk.bench.speed.counters import EXTERNAL_HITS, read_counter, settled_counter
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.load import Load, closed_load, poisson_load
from inferscale_sdk.bench.speed.timing import collector_paused
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.base import PromptPlan

__all__ = ["ThroughputOptions", "measure_throughput"]

_ONE = Sampling(max_tokens=1)
_WARM_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """What to load the server with.

    Args:
        users: Numbers of concurrent users.
        requests: Of each user, one after another.
        k: Facts in each prompt.
        output_tokens: Lengths of the answers.
        arms: Of text, injection and the ceiling.
        rates: Mean arrivals a second of the Poisson load; empty for none.
        arrivals: Requests of each Poisson load.
        objective_ms: Time to first token that counts as good.
        seed: Of the arrivals.

    Raises:
        ConfigurationError: A number is out of range, or an arm cannot be loaded.
    """

    users: tuple[int, ...] = (1, 10, 100)
    requests: int = 2
    k: int = 50
    output_tokens: tuple[int, ...] = (50, 8, 1)
    arms: tuple[Arm, ...] = BASIC_ARMS
    rates: tuple[float, ...] = ()
    arrivals: int = 60
    objective_ms: float = 500.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "output_tokens"):
            if (values := getattr(self, name)) and min(values) < 1:
                raise ConfigurationError(f"{name}={values} must be at least 1 each")
        for name in ("requests", "k", "arrivals"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")
        if any(rate <= 0 for rate in self.rates):
            raise ConfigurationError(f"rates={self.rates} must be arrivals a second, more than 0")
        if other := set(self.arms) - set(BASIC_ARMS):
            raise ConfigurationError(
                f"arms {', '.join(sorted(other))} cannot be loaded; choose from "
                f"{', '.join(BASIC_ARMS)}"
            )


@dataclass(slots=True)
class _Prompts:
    """The prompt of each user; one salt each, so that no user finds another's blocks.

    Both requests of a user carry the same prompt. With text its salt is new every time, so that
    nothing is found; the ceiling's stays, so that everything is.
    """

    plans: Sequence[PromptPlan]
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    def of(self, arm: Arm, user: int) -> PromptPlan:
        """The request of one user, made anew."""
        plan = plan_for(arm, self.plans[user % len(self.plans)], self.run)
        if arm is Arm.CACHED:
            return replace(plan, cache_salt=f"{plan.cache_salt}-user{user}")
        return plan


def measure_throughput(bed: Bed, options: ThroughputOptions, stages: Stages) -> dict[str, Any]:
    """Load the server arm by arm, and count."""
    prompts = _Prompts(_plans(bed, options, stages))
    url = getattr(bed.engine, "base_url", None)
    before = read_counter(url, EXTERNAL_HITS) if url else 0
    warmed = _warm(bed, prompts, Arm.INJECT, len(prompts.plans), stages)
    closed, poisson = [], []
    with collector_paused():
        for tokens in options.output_tokens:
            for users in options.users:
                for arm in options.arms:
                    closed.append(_closed(bed, options, prompts, stages, arm, users, tokens))
        for rate in options.rates:
            for arm in options.arms:
                poisson.append(_poisson(bed, options, prompts, stages, arm, rate))
    injected = warmed + sum(int(cell["injected_tokens"]) for cell in closed + poisson)
    grown = 0
    if url:
        after = settled_counter(
            lambda: read_counter(url, EXTERNAL_HITS), at_least=before + injected
        )
        grown = after - before
    return {
        "k": options.k,
        "requests_per_user": options.requests,
        "output_tokens": list(options.output_tokens),
        "objective_ms": options.objective_ms,
        "closed": closed,
        "poisson": poisson,
        "ratios": _ratios(closed),
        "injected_tokens": injected,
        "external_hits_delta": grown,
        "proved": injected == grown,
    }


def _plans(bed: Bed, options: ThroughputOptions, stages: Stages) -> list[PromptPlan]:
    with stages.stage("recall", "Recalling facts"):
        return [
            bed.memory.prepare(
                text, top_k=options.k, user_id=ASKED, max_tokens=max((1, *options.output_tokens))
            )
            for text in QUESTIONS
        ]


def _warm(bed: Bed, prompts: _Prompts, arm: Arm, users: int, stages: Stages) -> int:
    """Every segment in memory; or every user's prompt in vLLM's prefix cache, for the ceiling."""
    injected = 0
    with stages.steps("warm", f"Warming up, {arm.value}", users) as step:
        for start in range(0, users, _WARM_AT_ONCE):
            several = range(start, min(start + _WARM_AT_ONCE, users))
            plans = [[prompts.of(arm, user)] for user in several]
            load = asyncio.run(closed_load(bed.engine, plans, _ONE, step))
            injected += sum(one.report.injected_tokens for one in load.answers)
    return injected


def _closed(
    bed: Bed,
    options: ThroughputOptions,
    prompts: _Prompts,
    stages: Stages,
    arm: Arm,
    users: int,
    tokens: int,
) -> dict[str, Any]:
    if arm is Arm.CACHED:  # loads before it have pushed some out
        _warm(bed, prompts, arm, users, stages)
    plans = [[prompts.of(arm, user) for _ in range(options.requests)] for user in range(users)]
    what = f"{users} users, {tokens} output tokens, {arm.value}"
    load = _run(
        stages,
        what,
        users * options.requests,
        lambda step: closed_load(bed.engine, plans, _sampling(tokens), step),
    )
    return {"arm": arm.value, "users": users, "output_tokens": tokens, **load.figures()}


def _poisson(
    bed: Bed, options: ThroughputOptions, prompts: _Prompts, stages: Stages, arm: Arm, rate: float
) -> dict[str, Any]:
    tokens = options.output_tokens[0]
    if arm is Arm.CACHED:
        _warm(bed, prompts, arm, options.arrivals, stages)
    plans = [prompts.of(arm, number) for number in range(options.arrivals)]
    load = _run(
        stages,
        f"{rate:g} arrivals a second, {arm.value}",
        options.arrivals,
        lambda step: poisson_load(
            bed.engine, plans, _sampling(tokens), per_second=rate, seed=options.seed, step=step
        ),
    )
    within = load.within(options.objective_ms)
    return {
        "arm": arm.value,
        "arrivals_per_second": rate,
        "output_tokens": tokens,
        "within_objective": round(within, 4),
        "goodput_per_second": round(within * load.requests_per_second, 4),
        **load.figures(),
    }


def _run(stages: Stages, what: str, total: int, start: Any) -> Load:
    with stages.steps("load", what, total) as step:
        work: Coroutine[Any, Any, Load] = start(step)
        return asyncio.run(work)


def _sampling(tokens: int) -> Sampling:
    return Sampling(max_tokens=tokens, extra={"ignore_eos": True})


def _ratios(closed: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Injection over text and over the ceiling, by load."""
    rates = {(c["users"], c["output_tokens"], c["arm"]): c["requests_per_second"] for c in closed}
    ratios: dict[str, dict[str, float]] = {}
    for (users, tokens, arm), rate in rates.items():
        if arm != Arm.INJECT:
            continue
        for other in (Arm.PROMPT, Arm.CACHED):
            if (base := rates.get((users, tokens, other.value))) is not None:
                row = ratios.setdefault(f"{users} users, {tokens} output tokens", {})
                row[f"inject_over_{other.value}"] = round(rate / base, 3)
    return ratios
