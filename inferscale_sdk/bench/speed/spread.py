"""Medians, and how far values lie around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median, quantiles

__all__ = ["Spread"]

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """What a set of measurements looks like.

    Args:
        median: The middle.
        p10: Tenth percentile.
        p25: Lower quartile.
        p75: Upper quartile.
        p90: Ninetieth percentile.
        p99: Ninety-ninth percentile, by rank: the largest of fewer than a hundred values.
        mean: The mean.
        n: How many values.
    """

    median: float
    p10: float
    p25: float
    p75: float
    p90: float
    p99: float
    mean: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        ordered = sorted(values)
        n = len(ordered)
        if n == 1:
            only = ordered[0]
            return cls(only, only, only, only, only, only, only, 1)
        deciles = quantiles(ordered, n=10, method="inclusive")
        quartiles = quantiles(ordered, n=4, method="inclusive")
        return cls(
            median=median(ordered),
            p10=deciles[0],
            p25=quartiles[0],
            p75=quartiles[2],
            p90=deciles[-1],
            p99=ordered[ceil(0.99 * n) - 1],
            mean=fmean(ordered),
            n=n,
        )

    @classmethod
    def maybe(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of those that are there; ``None`` without any."""
        there = [value for value in values if value is not None]
        return cls.of(there) if there else None

    def as_dict(self) -> dict[str, float | int]:
        """For JSON."""
        names = ("median", "p10", "p25", "p75", "p90", "p99", "mean")
        return {name: round(getattr(self, name), _DIGITS) for name in names} | {"n": self.n}
