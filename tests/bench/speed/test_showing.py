"""Results as tables, pages and comparisons."""

from __future__ import annotations

import base64
import copy
import json
import re

import pytest
from speed_fakes import Silent, count_hits_of, fake_bed

from inferscale_sdk.bench.speed.arms import Arm
from inferscale_sdk.bench.speed.compare import compare_results, compare_table, load_result
from inferscale_sdk.bench.speed.environment import environment
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.plots import write_plots
from inferscale_sdk.bench.speed.tables import tables_of
from inferscale_sdk.bench.speed.ttft import TTFTOptions, measure_ttft
from inferscale_sdk.errors import ConfigurationError


@pytest.fixture
def result(tmp_path, monkeypatch):
    options = TTFTOptions(
        ks=(0, 3), arms=(Arm.PROMPT, Arm.INJECT, Arm.DISK, Arm.CACHED), requests=2, answer_tokens=3
    )
    with fake_bed(tmp_path / "bed") as bed:
        count_hits_of(monkeypatch, bed.engine)
        seen = measure_ttft(bed, options, Stages(Silent()))
    return {
        "bench": "ttft",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "environment": environment(),
        **seen.as_dict(),
        "seconds": {},
    }


def test_tables_have_a_column_for_every_k(result):
    shown = dict(tables_of(result))

    ttft = shown["Time to first token, ms: median (quartiles)"].splitlines()
    assert ttft[0] == "| arm | k=0 | k=3 |"
    assert {line.split(" | ")[0] for line in ttft[2:]} == {
        "| as text", "| injected from host memory", "| injected from disk", "| ceiling",
    }  # fmt: skip
    assert "inject over ceiling" in shown["Ratios of medians of time to first token"]


def test_the_page_needs_nothing_else(result, tmp_path):
    png, page = write_plots(result, tmp_path / "plots")

    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text(encoding="utf-8")
    assert base64.b64encode(png.read_bytes()).decode() in text
    assert "<td>injected from disk</td>" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_a_result_compared_to_itself_is_the_same_everywhere(result):
    comparison = compare_results(result, copy.deepcopy(result))

    assert comparison["environment_changed"] == {}
    assert comparison["only_first"] == comparison["only_second"] == []
    assert {figure["apart"] for figure in comparison["figures"].values()} == {False, None}
    assert comparison["figures"]["cells.inject.k3.ttft_ms"]["ratio"] == 1.0


def test_only_quartiles_that_do_not_touch_count_as_a_change(result):
    faster = copy.deepcopy(result)
    cell = faster["cells"]["inject"]["k3"]["ttft_ms"]
    for name in ("median", "p25", "p75"):
        cell[name] = result["cells"]["inject"]["k3"]["ttft_ms"]["p25"] / 10
    faster["environment"]["cpu"] = "another"

    comparison = compare_results(result, faster)

    assert comparison["figures"]["cells.inject.k3.ttft_ms"]["apart"] is True
    assert comparison["figures"]["cells.cached.k3.ttft_ms"]["apart"] is False
    assert list(comparison["environment_changed"]) == ["cpu"]
    assert re.search(r"cells\.inject\.k3\.ttft_ms \| .* \| yes \|", compare_table(comparison))


def test_results_of_different_commands_are_not_compared(result):
    with pytest.raises(ConfigurationError, match="bench ttft cannot be compared"):
        compare_results(result, {**result, "bench": "scale"})


def test_another_file_is_named(tmp_path, result):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(["no result"]))
    with pytest.raises(ConfigurationError, match=r"other\.json"):
        load_result(path)
    path.write_text(json.dumps(result))
    assert load_result(path)["bench"] == "ttft"
