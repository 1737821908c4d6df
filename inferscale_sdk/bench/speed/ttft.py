"""``inferscale bench ttft``: time to first token against the number of facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, TIER_ARMS, Arm
from inferscale_sdk.bench.speed.bed import Bed
from inferscale_sdk.bench.speed.contenders import Case, Contender, contenders_for
from inferscale_sdk.bench.speed.corpus import QUESTIONS
from inferscale_sdk.bench.speed.counters import EXTERNAL_HITS, read_counter, settled_counter
from inferscale_sdk.bench.speed.interleave import interleave
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.timing import Timed, collector_paused, timed
from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.errors import ConfigurationError

__all__ = ["DEFAULT_KS", "TTFTOptions", "TTFTResult", "measure_ttft"]

DEFAULT_KS = (0, 5, 10, 20, 50, 100, 200)


@dataclass(frozen=True, slots=True)
class TTFTOptions:
    """What to compare.

    Args:
        ks: Facts in the prompt.
        arms: See :class:`Arm`; without any facts only text, injection and the ceiling take part.
        requests: Timed requests of each arm at each k.
        questions: Different questions; each is asked ``requests / questions`` times.
        answer_tokens: Length of the answers, which TPOT and ITL are taken from.
        seed: Of the order.

    Raises:
        ConfigurationError: A number is out of range.
    """

    ks: tuple[int, ...] = DEFAULT_KS
    arms: tuple[Arm, ...] = (Arm.PROMPT, Arm.REPEATED, Arm.INJECT, Arm.DISK, Arm.CACHED)
    requests: int = 20
    questions: int = 10
    answer_tokens: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 0 or len(set(self.ks)) != len(self.ks):
            raise ConfigurationError(
                f"k={','.join(map(str, self.ks))} must be numbers of facts from 0 on, each once"
            )
        for name in ("requests", "questions", "answer_tokens"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")

    def cases(self) -> list[Case]:
        """Every question at every k."""
        n = min(self.questions, self.requests, len(QUESTIONS))
        return [
            Case(number, QUESTIONS[number], k, self.answer_tokens)
            for k in self.ks
            for number in range(n)
        ]

    @property
    def rounds(self) -> int:
        """How often each case is asked."""
        return -(-self.requests // min(self.questions, self.requests, len(QUESTIONS)))


@dataclass(slots=True)
class TTFTResult:
    """What was seen.

    Args:
        seen: Timed answers by arm and k.
        injected_tokens: Over all requests, untimed ones included, as the connector counted them.
        external_hits_delta: By how much vLLM's own counters of external hits grew meanwhile.
        block_size: Tokens per block of vLLM's cache.
    """

    seen: dict[tuple[Arm, int], list[Timed]] = field(default_factory=dict)
    injected_tokens: int = 0
    external_hits_delta: int = 0
    block_size: int = 0

    @property
    def proved(self) -> bool:
        """Whether vLLM counted exactly the tokens that the connector says it injected."""
        return self.injected_tokens == self.external_hits_delta

    def as_dict(self) -> dict[str, Any]:
        """For JSON; times in milliseconds."""
        cells = {key: _cell(key, group, self.block_size) for key, group in self.seen.items()}
        table: dict[str, dict[str, Any]] = {}
        for (arm, k), cell in sorted(cells.items(), key=lambda item: item[0][1]):
            table.setdefault(arm.value, {})[f"k{k}"] = cell
        medians = {
            arm: {k: cell["ttft_ms"]["median"] for k, cell in row.items()}
            for arm, row in table.items()
        }
        return {
            "ttft_ms": medians,
            "query_to_first_token_ms": {
                arm: {k: cell["query_to_first_token_ms"]["median"] for k, cell in row.items()}
                for arm, row in table.items()
            },
            "ratios": _ratios(medians),
            "injected_tokens": self.injected_tokens,
            "external_hits_delta": self.external_hits_delta,
            "proved": self.proved,
            "cells": table,
        }


def measure_ttft(
    bed: Bed,
    options: TTFTOptions,
    stages: Stages,
    *,
    mem0: Contender | None = None,
) -> TTFTResult:
    """Warm up, then ask every question at every k in every arm, in turns.

    Args:
        bed: Servers and memory.
        options: What to compare.
        stages: Told how far it is.
        mem0: Takes part as well.
    """
    entered = contenders_for(bed, options.arms)
    if mem0 is not None:
        entered[mem0.arm] = mem0
    cases = options.cases()
    sampling = Sampling(max_tokens=options.answer_tokens, extra={"ignore_eos": True})
    result = TTFTResult(block_size=bed.engine.info().block_size)
    engines = list({id(entry.engine): entry.engine for entry in entered.values()}.values())
    before = _external_hits(engines)
    turns = [t for r in range(options.rounds) for t in _round(cases, entered, options.seed + r)]
    warm_ups = [t for t in _round(cases, entered, options.seed) if t[0].number == 0]
    with stages.progress("ask", "Asking", len(turns) + len(warm_ups)) as tell, collector_paused():
        for done, (case, arm) in enumerate(warm_ups + turns, start=1):
            entry = entered[arm]
            entry.ready(case)
            answer = timed(entry.engine, partial(entry.plan, case), sampling)
            result.injected_tokens += answer.report.injected_tokens
            if done > len(warm_ups):
                result.seen.setdefault((arm, case.k), []).append(answer)
            tell(done)
    result.injected_tokens += sum(entry.injected for entry in entered.values())
    wanted = before + result.injected_tokens
    after = settled_counter(lambda: _external_hits(engines), at_least=wanted)
    result.external_hits_delta = after - before
    return result


def _round(
    cases: Sequence[Case], entered: Mapping[Arm, Contender], seed: int
) -> list[tuple[Case, Arm]]:
    """Without any facts all prompts are the same: three arms of them are the floor three times."""
    turns = interleave(cases, list(entered), seed)
    return [(case, arm) for case, arm in turns if case.k or arm in BASIC_ARMS]


def _external_hits(engines: Sequence[Engine]) -> int:
    urls = [url for engine in engines if (url := getattr(engine, "base_url", None))]
    return sum(read_counter(url, EXTERNAL_HITS) for url in urls)


def _cell(key: tuple[Arm, int], group: Sequence[Timed], block_size: int) -> dict[str, Any]:
    arm, k = key
    gaps = [gap for one in group for gap in one.itl_ms]
    spreads = {
        "ttft_ms": Spread.of([one.ttft_ms for one in group]),
        "prepare_ms": Spread.of([one.prepare_ms for one in group]),
        "query_to_first_token_ms": Spread.of([one.query_to_first_token_ms for one in group]),
        "tpot_ms": Spread.maybe(one.tpot_ms for one in group),
        "itl_ms": Spread.maybe(gaps),
        "e2el_ms": Spread.of([one.e2el_ms for one in group]),
    }
    cell: dict[str, Any] = {name: s.as_dict() for name, s in spreads.items() if s is not None}
    n = len(group)
    for name in ("prompt", "memory", "injected", "cached", "prefilled"):
        total = sum(getattr(one.report, f"{name}_tokens") for one in group)
        cell[f"{name}_tokens"] = round(total / n, 1)
    cell["requests"] = n
    if arm is Arm.CACHED and block_size:
        # The ceiling is one only if vLLM found every full block.
        whole = [_whole_blocks(one, block_size) == one.report.cached_tokens for one in group]
        cell["found_whole"] = sum(whole)
    if arm in TIER_ARMS and arm is not Arm.LIVE and k:
        fully = [one.report.injected_tokens >= one.report.memory_tokens for one in group]
        cell["fully_injected"] = sum(fully)
    return cell


def _whole_blocks(one: Timed, block_size: int) -> int:
    return (one.report.prompt_tokens - 1) // block_size * block_size


def _ratios(medians: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What the limits are stated in: prompt over injected, and each arm over the ceiling."""
    ratios: dict[str, dict[str, float]] = {}
    inject, ceiling = medians.get(Arm.INJECT.value, {}), medians.get(Arm.CACHED.value, {})
    for k, value in inject.items():
        for arm in (Arm.PROMPT, Arm.REPEATED, Arm.MEM0):
            if k in medians.get(arm.value, {}):
                ratios.setdefault(f"{arm.value}_over_inject", {})[k] = round(
                    medians[arm.value][k] / value, 3
                )
    for arm in TIER_ARMS:
        for k, value in medians.get(arm.value, {}).items():
            if k in ceiling:
                ratios.setdefault(f"{arm.value}_over_ceiling", {})[k] = round(value / ceiling[k], 3)
    return ratios
