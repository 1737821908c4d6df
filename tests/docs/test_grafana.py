"""The dashboard in ``docs/`` is one that Grafana can import."""

from __future__ import annotations

import json
import re
from pathlib import Path

from inferscale_sdk.vllm_connector.metrics_catalog import METRICS, PREFIX

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 10
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert "$model" in target["expr"], panel["title"]
            assert target["expr"].count("(") == target["expr"].count(")")


def test_it_shows_every_metric_and_no_other() -> None:
    """That they are on ``/metrics`` is tested against a real server."""
    every = {PREFIX + name + "_total" * (m.kind == "counter") for name, m in METRICS.items()}
    assert set(re.findall(r"inferscale:\w+", DASHBOARD.read_text())) == every
