"""Results summed up: what each arm keeps, with intervals, by conversation and by category."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from inferscale_sdk.bench.quality.dataset import CATEGORIES
from inferscale_sdk.bench.quality.results import Result
from inferscale_sdk.bench.quality.run import Cell, Measured
from inferscale_sdk.bench.quality.statistics import (
    Interval,
    Triple,
    bootstrap,
    mean_of_groups,
    useful_information,
)

__all__ = ["QualityReport", "Row", "summarise"]


@dataclass(frozen=True, slots=True)
class Row:
    """One arm with one choice of facts.

    Args:
        arm: Its name.
        k: Facts given.
        evidence: ``natural`` or ``guaranteed``.
        kept: Useful information kept, over all questions.
        by_conversation: The same for each conversation.
        mean_of_conversations: Their average.
        by_category: The same for each category, with its count.
        nll: Mean over questions.
        nll_difference: Arm less full prompt, paired.
        kl: Mean over questions, from the full prompt.
        prompt_tokens: Mean.
        prefilled_tokens: Mean.
        f1: Mean; ``None`` without answers.
        recall: Mean; ``None`` without answers.
        f1_difference: Arm less full prompt, paired.
    """

    arm: str
    k: int
    evidence: str
    kept: Interval
    by_conversation: Mapping[str, float]
    mean_of_conversations: Interval
    by_category: Mapping[str, tuple[float, int]]
    nll: float
    nll_difference: Interval
    kl: float
    prompt_tokens: float
    prefilled_tokens: float
    f1: float | None = None
    recall: float | None = None
    f1_difference: Interval | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "arm": self.arm,
            "k": self.k,
            "evidence": self.evidence,
            "useful_information_kept": self.kept.as_dict(),
            "mean_of_conversations": self.mean_of_conversations.as_dict(),
            "by_conversation": dict(self.by_conversation),
            "by_category": {
                name: {"value": value, "n": n} for name, (value, n) in self.by_category.items()
            },
            "nll": self.nll,
            "nll_difference": self.nll_difference.as_dict(),
            "kl": self.kl,
            "prompt_tokens": self.prompt_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "f1": self.f1,
            "gold_recall": self.recall,
            "f1_difference": self.f1_difference and self.f1_difference.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class QualityReport:
    """What ``inferscale bench quality`` shows.

    Args:
        model: Name of the model.
        dtype: It computed in.
        data: Name of the file.
        rows: In the order of arms and choices of facts.
        overall: Useful information kept by each arm, over all choices of facts. Those of one
            question are resampled together.
        by_conversation: The same for each conversation, by arm.
        mean_of_conversations: Their average, by arm: each counts as much, however many questions
            it has and however much its facts tell.
        encoding: Prompt tokens per own token of what was encoded in this run, by arm.
    """

    model: str
    dtype: str
    data: str
    rows: tuple[Row, ...]
    overall: Mapping[str, Interval]
    by_conversation: Mapping[str, Mapping[str, Interval]]
    mean_of_conversations: Mapping[str, Interval]
    encoding: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "data": self.data,
            "useful_information_kept": {arm: i.value for arm, i in self.overall.items()},
            "intervals": {arm: i.as_dict() for arm, i in self.overall.items()},
            "by_conversation": {
                arm: {name: interval.as_dict() for name, interval in found.items()}
                for arm, found in self.by_conversation.items()
            },
            "mean_of_conversations": {
                arm: i.as_dict() for arm, i in self.mean_of_conversations.items()
            },
            "encoded_prompt_tokens_per_own_token": dict(self.encoding),
            "rows": [row.as_dict() for row in self.rows],
        }


def summarise(measured: Measured, *, model: str, data: str, seed: int = 0) -> QualityReport:
    """Make a report of what was measured.

    Args:
        measured: Has the arms ``prompt`` and ``other``.
        model: Name to show.
        data: Name to show.
        seed: Of the bootstrap.
    """
    results = measured.results
    rows, overall, by_conversation, means = [], {}, {}, {}
    for arm, cells in results.items():
        for cell, found in cells.items():
            full, other = results["prompt"][cell], results["other"][cell]
            rows.append(_row(arm, cell, found, full, other, seed))
        sums = _sums(cells, results["prompt"], results["other"])
        overall[arm] = bootstrap(sums, _pooled, seed=seed)
        means[arm] = bootstrap(sums, mean_of_groups, seed=seed)
        by_conversation[arm] = {
            name: bootstrap({name: part}, _pooled, seed=seed) for name, part in sums.items()
        }
    encoding = {arm: prompt / own for arm, (own, prompt) in measured.encoding.items() if own}
    return QualityReport(
        model, measured.dtype, data, tuple(rows), overall, by_conversation, means, encoding
    )


def _row(
    arm: str,
    cell: Cell,
    found: Mapping[str, Result],
    full: Mapping[str, Result],
    other: Mapping[str, Result],
    seed: int,
) -> Row:
    groups = _triples(found.values(), full, other)
    results = list(found.values())
    return Row(
        arm=arm,
        k=cell.k,
        evidence=cell.evidence,
        kept=bootstrap(groups, _pooled, seed=seed),
        by_conversation={name: useful_information(part) for name, part in groups.items()},
        mean_of_conversations=bootstrap(groups, mean_of_groups, seed=seed),
        by_category=_by_category(results, full, other),
        nll=fmean(result.nll for result in results),
        nll_difference=bootstrap(groups, _difference, seed=seed),
        kl=fmean(result.kl for result in results),
        prompt_tokens=fmean(result.prompt_tokens for result in results),
        prefilled_tokens=fmean(result.prefilled_tokens for result in results),
        f1=_mean(results, lambda result: result.f1),
        recall=_mean(results, lambda result: result.recall),
        f1_difference=_f1_difference(results, full, seed),
    )


def _triple(result: Result, full: Mapping[str, Result], other: Mapping[str, Result]) -> Triple:
    return other[result.question].nll, result.nll, full[result.question].nll


def _triples(
    found: Sequence[Result] | Any, full: Mapping[str, Result], other: Mapping[str, Result]
) -> dict[str, list[Triple]]:
    groups: dict[str, list[Triple]] = {}
    for result in found:
        groups.setdefault(result.conversation, []).append(_triple(result, full, other))
    return groups


def _sums(
    cells: Mapping[Cell, Mapping[str, Result]],
    full: Mapping[Cell, Mapping[str, Result]],
    other: Mapping[Cell, Mapping[str, Result]],
) -> dict[str, list[Triple]]:
    """By conversation and question, over all choices of facts."""
    sums: dict[str, dict[str, Triple]] = {}
    for cell, found in cells.items():
        for result in found.values():
            name, part = result.question, sums.setdefault(result.conversation, {})
            before = part.get(name, (0.0, 0.0, 0.0))
            nlls = _triple(result, full[cell], other[cell])
            part[name] = before[0] + nlls[0], before[1] + nlls[1], before[2] + nlls[2]
    return {conversation: list(part.values()) for conversation, part in sums.items()}


def _pooled(groups: Mapping[str, Sequence[Triple]]) -> float:
    return useful_information([triple for part in groups.values() for triple in part])


def _difference(groups: Mapping[str, Sequence[Triple]]) -> float:
    """Mean of the arm's figure less the full prompt's."""
    return fmean(arm - full for part in groups.values() for _, arm, full in part)


def _by_category(
    results: Sequence[Result], full: Mapping[str, Result], other: Mapping[str, Result]
) -> dict[str, tuple[float, int]]:
    parts: dict[str, list[Triple]] = {}
    for result in results:
        name = CATEGORIES[result.category]
        parts.setdefault(name, []).append(_triple(result, full, other))
    return {name: (useful_information(part), len(part)) for name, part in sorted(parts.items())}


def _mean(results: Sequence[Result], value: Callable[[Result], float | None]) -> float | None:
    found = [each for result in results if (each := value(result)) is not None]
    return fmean(found) if len(found) == len(results) else None


def _f1_difference(
    results: Sequence[Result], full: Mapping[str, Result], seed: int
) -> Interval | None:
    """Arm less full prompt."""
    groups: dict[str, list[Triple]] = {}
    for result in results:
        ours, theirs = result.f1, full[result.question].f1
        if ours is None or theirs is None:
            return None
        groups.setdefault(result.conversation, []).append((0.0, ours, theirs))
    return bootstrap(groups, _difference, seed=seed)
