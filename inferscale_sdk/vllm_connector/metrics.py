"""The connector's counters on vLLM's own way to ``/metrics`` and to its log.

Each half collects what happened since it was last asked (:class:`SchedulerMeter`,
:class:`WorkerMeter`); vLLM asks once a step, also when nothing but decoding happens, so the answer
that nothing did must cost next to nothing. vLLM puts ranks together, and hands the sum to
:class:`PromMetrics` in the process that serves HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from inferscale_sdk.vllm_connector.metrics_catalog import (
    METRICS,
    PREFIX,
    TIER_COUNTERS,
    TIER_GAUGES,
)

if TYPE_CHECKING:
    from inferscale_sdk.vllm_connector.jobs.base import Core

__all__ = ["ConnectorStats", "PromMetrics", "SchedulerMeter", "WorkerMeter"]

Number = int | float

_RESULTS = {"injections": "injected", "text_injections": "text"}
_REASONS = {"refused_": "refusals", "reason_": "shortfalls"}


@dataclass
class ConnectorStats(KVConnectorStats):  # type: ignore[misc]
    """What happened in an interval.

    ``data`` has ``counters``, which add up, by ``name|label``, and ``gauges``, of which the last
    value stands, by ``name|label|rank``. Nothing but strings and numbers, since it travels between
    processes.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self.data: dict[str, Any] = {"counters": {}, "gauges": {}}

    def count(self, name: str, by: Number, label: str = "") -> None:
        """Add to a counter."""
        if by:
            key = f"{name}|{label}"
            self.data["counters"][key] = self.data["counters"].get(key, 0) + by

    def gauge(self, name: str, value: Number, label: str, rank: int) -> None:
        """Set a gauge."""
        self.data["gauges"][f"{name}|{label}|{rank}"] = value

    def aggregate(self, other: KVConnectorStats) -> ConnectorStats:
        """Take in the figures of another rank, half or interval."""
        for key, by in other.data["counters"].items():
            self.data["counters"][key] = self.data["counters"].get(key, 0) + by
        self.data["gauges"].update(other.data["gauges"])
        return self

    def reduce(self) -> dict[str, Number]:
        """What is worth a line in the log: counters that moved."""
        return {
            key.rstrip("|").replace("|", "_"): round(value, 3)
            for key, value in sorted(self.data["counters"].items())
        }

    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.data["counters"] or self.data["gauges"])


class _Deltas:
    """Turns figures since the start into figures of an interval."""

    def __init__(self) -> None:
        self._counted: dict[str, Number] = {}
        self._gauged: dict[str, Number] = {}
        self._tiers: dict[str, Mapping[str, Any]] = {}

    def count(self, stats: ConnectorStats, name: str, total: Number, label: str = "") -> None:
        key = f"{name}|{label}"
        stats.count(name, total - self._counted.get(key, 0), label)
        self._counted[key] = total

    def gauge(self, stats: ConnectorStats, name: str, value: Number, label: str, rank: int) -> None:
        key = f"{name}|{label}"
        if self._gauged.get(key) != value:
            self._gauged[key] = value
            stats.gauge(name, value, label, rank)

    def tier(
        self, stats: ConnectorStats, tier: str, figures: Mapping[str, Any], rank: int = 0
    ) -> None:
        """A tier's figures, whichever of them it has."""
        if self._tiers.get(tier) == figures:
            return
        self._tiers[tier] = dict(figures)
        for name in TIER_COUNTERS:
            self.count(stats, f"tier_{name}", figures.get(name) or 0, tier)
        for name in TIER_GAUGES:
            value = figures.get(name)
            if value is not None:
                self.gauge(stats, f"tier_{name}", value, tier, rank)


class SchedulerMeter:
    """The scheduler half's figures: requests, tokens, reasons, and the host tier it decides on."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._deltas = _Deltas()
        self._seen: dict[str, int] = {}

    def take(self) -> ConnectorStats | None:
        """What happened since the last call, ``None`` if nothing did."""
        stats = ConnectorStats()
        if self._core.counters != self._seen:
            self._seen = dict(self._core.counters)
            for name, total in self._seen.items():
                metric, label = _metric_of(name)
                if metric in METRICS:
                    self._deltas.count(stats, metric, total, label)
        self._deltas.tier(stats, "host", self._core.index.stats())
        return None if stats.is_empty() else stats


def _metric_of(counter: str) -> tuple[str, str]:
    """The metric and the label's value that a counter of the scheduler half stands for."""
    if counter in _RESULTS:
        return "injections", _RESULTS[counter]
    for prefix, metric in _REASONS.items():
        if counter.startswith(prefix):
            return metric, counter.removeprefix(prefix)
    return counter, ""


class WorkerMeter:
    """One rank's figures: bytes, seconds, and its tiers.

    Args:
        tiers: Figures of each tier by its name.
        rank: Which rank.
    """

    def __init__(self, tiers: Callable[[], Iterable[Mapping[str, Any]]], rank: int) -> None:
        self._tiers = tiers
        self._rank = rank
        self._deltas = _Deltas()
        self._stats = ConnectorStats()

    def count(self, name: str, by: Number) -> None:
        """Add to a metric."""
        self._stats.count(name, by)

    def take(self) -> ConnectorStats | None:
        """What happened since the last call, ``None`` if nothing did."""
        for figures in self._tiers():
            self._deltas.tier(self._stats, str(figures["name"]), figures, self._rank)
        stats, self._stats = self._stats, ConnectorStats()
        return None if stats.is_empty() else stats


class PromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The metrics in the process that serves ``/metrics``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        classes = {"counter": self._counter_cls, "gauge": self._gauge_cls}
        self._metrics = {
            name: classes[metric.kind](
                name=PREFIX + name,
                documentation=metric.help,
                labelnames=labelnames + ([metric.label] if metric.label else []),
            )
            for name, metric in METRICS.items()
        }
        # A counter that stands at 0 is there from the start, so that its first growth is seen.
        for values in per_engine_labelvalues.values():
            for name, metric in METRICS.items():
                if metric.label is None:
                    self._metrics[name].labels(*values)
        self._ranks: dict[tuple[int, str, str], dict[str, Number]] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record what happened in an interval."""
        for key, by in transfer_stats_data["counters"].items():
            name, label = key.split("|")
            self._labelled(name, label, engine_idx).inc(by)
        for key, value in transfer_stats_data["gauges"].items():
            name, label, rank = key.split("|")
            ranks = self._ranks.setdefault((engine_idx, name, label), {})
            ranks[rank] = value
            # Each rank has its shard of every segment: bytes add up, segments do not.
            whole = sum(ranks.values()) if name.endswith("bytes") else max(ranks.values())
            self._labelled(name, label, engine_idx).set(whole)

    def _labelled(self, name: str, label: str, engine_idx: int) -> Any:
        own = [label] if METRICS[name].label else []
        return self._metrics[name].labels(*self.per_engine_labelvalues[engine_idx], *own)
