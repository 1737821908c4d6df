"""Medians, ratios, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm
from inferscale_sdk.bench.speed.spread import Spread

__all__ = ["Answer", "Cell", "DemoReport", "Sample", "cells_of"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed request.

    Args:
        arm: Which arm.
        k: Facts in the prompt.
        question: Number of the question, from 0.
        ttft_ms: From sending the request to the first piece of text, as the client sees it.
        memory_tokens: Prompt tokens that are facts.
        prefilled_tokens: Prompt tokens that the engine computed.
        injected_tokens: Prompt tokens taken from stored KV, as counted by the server.
        cached_tokens: Prompt tokens found in vLLM's own prefix cache.
    """

    arm: Arm
    k: int
    question: int
    ttft_ms: float
    memory_tokens: int
    prefilled_tokens: int
    injected_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Cell:
    """All requests of one arm at one k. Token counts are means per request."""

    arm: Arm
    k: int
    ttft_ms: Spread
    memory_tokens: float
    prefilled_tokens: float
    injected_tokens: float
    cached_tokens: float


def cells_of(samples: Sequence[Sample]) -> tuple[Cell, ...]:
    """Samples by arm and k: k ascending, arms in the order of the table in ``arms``."""
    groups: dict[tuple[int, Arm], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.k, sample.arm), []).append(sample)
    order = BASIC_ARMS
    return tuple(
        _cell(groups[key]) for key in sorted(groups, key=lambda key: (key[0], order.index(key[1])))
    )


def _cell(group: Sequence[Sample]) -> Cell:
    n = len(group)
    return Cell(
        arm=group[0].arm,
        k=group[0].k,
        ttft_ms=Spread.of([s.ttft_ms for s in group]),
        memory_tokens=sum(s.memory_tokens for s in group) / n,
        prefilled_tokens=sum(s.prefilled_tokens for s in group) / n,
        injected_tokens=sum(s.injected_tokens for s in group) / n,
        cached_tokens=sum(s.cached_tokens for s in group) / n,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to one question at one k, arm by arm.

    ``evidence`` says whether a fact that holds the answer was among those recalled.
    """

    question: str
    expected: str
    k: int
    evidence: bool
    texts: dict[Arm, str]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of the demo.

    Args:
        model: The served model's name.
        facts: Facts remembered.
        encoded: Facts encoded in this run; 0 when their KV was already on disk.
        cells: One per arm and k.
        answers: One per question and k.
        injected_tokens: Sum over every injecting request of the run, warm-up included, as the
            connector counted them.
        external_hits_delta: By how much vLLM's own counter of external hits grew meanwhile.
        seconds: How long each stage took.
    """

    model: str
    facts: int
    encoded: int
    cells: tuple[Cell, ...]
    answers: tuple[Answer, ...]
    injected_tokens: int
    external_hits_delta: int
    seconds: dict[str, float]

    def cell(self, arm: Arm, k: int) -> Cell:
        """The cell of ``arm`` at ``k``."""
        return next(cell for cell in self.cells if cell.arm is arm and cell.k == k)

    @property
    def ks(self) -> tuple[int, ...]:
        """The numbers of facts that were compared, ascending."""
        return tuple(sorted({cell.k for cell in self.cells}))

    def speedup(self, k: int) -> float:
        """How many times sooner the first token comes than with memory as prompt text."""
        return self.cell(Arm.PROMPT, k).ttft_ms.median / self.cell(Arm.INJECT, k).ttft_ms.median

    def over_ceiling(self, k: int) -> float:
        """Time to first token relative to the ceiling; below 1 means sooner."""
        return self.cell(Arm.INJECT, k).ttft_ms.median / self.cell(Arm.CACHED, k).ttft_ms.median

    @property
    def proved(self) -> bool:
        """Whether vLLM counted exactly the tokens that the connector says it injected, and any."""
        return 0 < self.injected_tokens == self.external_hits_delta

    def as_dict(self) -> dict[str, Any]:
        """The report as one JSON object; times in milliseconds unless named otherwise."""
        by_arm: dict[str, dict[str, dict[str, Any]]] = {arm.value: {} for arm in BASIC_ARMS}
        for cell in self.cells:
            by_arm[cell.arm.value][f"k{cell.k}"] = _cell_dict(cell)
        out: dict[str, Any] = {
            "model": self.model,
            "questions": len({answer.question for answer in self.answers}),
            "facts": self.facts,
            "encoded": self.encoded,
            "ttft_ms": {
                arm: {k: cell["ttft_ms"] for k, cell in row.items()} for arm, row in by_arm.items()
            },
        }
        for k in self.ks:
            out[f"speedup_k{k}"] = round(self.speedup(k), 3)
            out[f"over_ceiling_k{k}"] = round(self.over_ceiling(k), 3)
        return out | {
            "injected_tokens": self.injected_tokens,
            "external_hits_delta": self.external_hits_delta,
            "proved": self.proved,
            "cells": by_arm,
            "answers": [
                {
                    "question": a.question,
                    "expected": a.expected,
                    "k": a.k,
                    "evidence_recalled": a.evidence,
                    **{arm.value: text for arm, text in a.texts.items()},
                }
                for a in self.answers
            ],
            "seconds": {stage: round(value, 2) for stage, value in self.seconds.items()},
        }


def _cell_dict(cell: Cell) -> dict[str, Any]:
    return {
        "ttft_ms": round(cell.ttft_ms.median, 2),
        "ttft_ms_p10": round(cell.ttft_ms.p10, 2),
        "ttft_ms_p90": round(cell.ttft_ms.p90, 2),
        "requests": cell.ttft_ms.n,
        "memory_tokens": round(cell.memory_tokens, 1),
        "prefilled_tokens": round(cell.prefilled_tokens, 1),
        "injected_tokens": round(cell.injected_tokens, 1),
        "cached_tokens": round(cell.cached_tokens, 1),
    }
