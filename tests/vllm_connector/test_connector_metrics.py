"""What the connector counts, and how ranks and intervals are put together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from inferscale_sdk.tiers.base import TierStats
from inferscale_sdk.vllm_connector.connector import InferScaleConnector
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.metrics import ConnectorStats, SchedulerMeter, WorkerMeter
from inferscale_sdk.vllm_connector.metrics_catalog import METRICS, TIER_COUNTERS


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"inferscale:{name}", {"engine": "0", **labels})


@pytest.fixture
def prom():
    metrics = InferScaleConnector.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None),
        {Counter: Counter, Gauge: Gauge, Histogram: Histogram},
        ["engine"],
        {0: ["0"]},
    )
    yield metrics
    for metric in metrics._metrics.values():
        REGISTRY.unregister(metric)


def test_counters_without_labels_start_at_zero(prom) -> None:
    for name, metric in METRICS.items():
        if metric.label is None:
            assert value(f"{name}_total") == 0


def test_intervals_and_ranks_add_up(prom) -> None:
    figures = {"name": "disk", "puts": 2, "used_bytes": 100, "segments": 2, "capacity_bytes": None}
    meters = [WorkerMeter(lambda: [figures], rank) for rank in (0, 1)]
    first = [meter.take() for meter in meters]
    assert None not in first
    prom.observe(first[0].aggregate(first[1]).to_dict())
    assert value("tier_puts_total", tier="disk") == 4
    assert value("tier_used_bytes", tier="disk") == 200
    assert value("tier_segments", tier="disk") == 2
    assert value("tier_capacity_bytes", tier="disk") is None
    assert [meter.take() for meter in meters] == [None, None]
    figures |= {"puts": 3, "used_bytes": 150}
    # Only one rank has news: the other's last word stands.
    prom.observe(meters[0].take().to_dict())
    assert value("tier_puts_total", tier="disk") == 5
    assert value("tier_used_bytes", tier="disk") == 250


def test_the_scheduler_half_says_what_is_new_and_nothing_else() -> None:
    core = SimpleNamespace(counters={"injections": 1}, index=SegmentIndex(100))
    meter = SchedulerMeter(core)
    assert meter.take().data == {
        "counters": {"injections|injected": 1},
        "gauges": {
            "tier_segments|host|0": 0,
            "tier_used_bytes|host|0": 0,
            "tier_pinned_bytes|host|0": 0,
            "tier_capacity_bytes|host|0": 100,
        },
    }
    assert meter.take() is None
    core.counters["injections"] += 2
    assert meter.take().data == {"counters": {"injections|injected": 2}, "gauges": {}}
    core.index.evictions += 1
    assert meter.take().data == {"counters": {"tier_evictions|host": 1}, "gauges": {}}
    assert meter.take() is None


def test_stats_survive_the_way_between_processes_and_say_something_in_the_log() -> None:
    import msgspec

    stats = ConnectorStats()
    assert stats.is_empty()
    stats.count("claimed_tokens", 5)
    stats.count("refusals", 1, "bad_signature")
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()))
    back = InferScaleConnector.build_kv_connector_stats(sent)
    back.aggregate(stats)
    assert back.reduce() == {"claimed_tokens": 10, "refusals_bad_signature": 2}
    assert not InferScaleConnector.build_kv_connector_stats().data["counters"]


def test_a_tiers_figures_are_all_known() -> None:
    """Whatever a tier counts is on ``/metrics`` or left out on purpose."""
    fields = set(TierStats("x").as_dict())
    assert fields - {"name", "wrong_key"} <= {*TIER_COUNTERS, "segments", "used_bytes"} | {
        "capacity_bytes"
    }
    assert set(TIER_COUNTERS) <= fields


def test_a_request_counts_what_it_injected(harness) -> None:
    tokens = harness.encode_text("- Ida paints the sheds of the harbour yellow every spring.\n")
    keys = harness.encode(
        tokens * 2 + tokens[:1], [(0, len(tokens)), (len(tokens), 2 * len(tokens))], tag="metrics"
    )
    counters = dict(harness.scheduler._core.counters)
    harness.inject(tokens * 2 + tokens[:3], [(key, len(tokens)) for key in keys])
    after = harness.scheduler._core.counters
    grown = {k: v - counters.get(k, 0) for k, v in after.items() if v != counters.get(k, 0)}
    n = 2 * len(tokens)
    assert grown == {
        "verified_tokens": n,
        "verified_segments": 2,
        "claimed_tokens": n,
        "claimed_segments": 2,
        "loaded_tokens": n,
        "loaded_segments": 2,
        "injections": 1,
    }
    # vLLM has collected it already, with the step that ended the request.
    assert harness.scheduler.meter.take() is None
