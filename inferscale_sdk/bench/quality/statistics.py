"""From NLL per question to useful information kept, with paired bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

__all__ = ["Interval", "Triple", "bootstrap", "mean_of_groups", "useful_information"]

RESAMPLES = 2000

Triple = tuple[float, float, float]
"""NLL of one question: with another memory, with the arm, with the full prompt."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval.

    Args:
        value: The estimate.
        low: 2.5th percentile of the resamples.
        high: 97.5th percentile.
        n: Questions.
    """

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def useful_information(triples: Sequence[Triple]) -> float:
    """(NLL(other) − NLL(arm)) / (NLL(other) − NLL(full)), each averaged over questions.

    Not a number if the full prompt is worth exactly as much as another memory.
    """
    gain = fsum(other - arm for other, arm, _ in triples)
    full = fsum(other - full for other, _, full in triples)
    return gain / full if full else float("nan")


def mean_of_groups(
    groups: Mapping[str, Sequence[Triple]],
    estimate: Callable[[Sequence[Triple]], float] = useful_information,
) -> float:
    """The estimate of each conversation, averaged."""
    return fsum(estimate(triples) for triples in groups.values()) / len(groups)


def bootstrap(
    groups: Mapping[str, Sequence[Triple]],
    estimate: Callable[[Mapping[str, Sequence[Triple]]], float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Resample questions within their conversation; what belongs to one question stays together.

    Args:
        groups: Triples by conversation, at least one.
        estimate: Of the groups, called on each resample.
        seed: Of the resampling.
        resamples: How many.
    """
    draw = random.Random(seed)  # noqa: S311 - statistics, not secrets
    values = sorted(
        estimate({name: draw.choices(list(t), k=len(t)) for name, t in groups.items()})
        for _ in range(resamples)
    )
    return Interval(
        estimate(groups),
        values[int(0.025 * (resamples - 1))],
        values[int(0.975 * (resamples - 1))],
        sum(map(len, groups.values())),
    )
