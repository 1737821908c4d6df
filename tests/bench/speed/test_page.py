"""The page on performance holds what was measured, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inferscale_sdk.bench.speed.page import filled
from inferscale_sdk.errors import ConfigurationError

DOCS = Path(__file__).parents[3] / "docs"


def test_the_tables_are_those_of_the_results():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")

    assert filled(page, DOCS / "performance") == page
    assert len(re.findall("<!-- bench ", page)) >= 2


def test_every_result_on_the_page_that_injected_is_proved():
    for path in sorted((DOCS / "performance").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result.get("proved", True) is True, path.name


def test_a_block_is_written_anew_and_the_rest_stays(tmp_path):
    spread = {"median": 12.0, "p25": 11.0, "p75": 13.0}
    way = {"name": "way", "facts_per_second": spread, "requests": 3}
    result = {
        "bench": "ingest",
        "measured_at": "2026-01-02T00:00:00+00:00",
        "environment": {
            "cpu": "a", "cores": 2, "gpu": None, "load_average": 0.5, "server": {},
        },
        "ways": {"batched": way | {"prompt_tokens_per_own_token": 2.0}},
    }  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(result))
    page = "before\n<!-- bench one -->\nold\n<!-- end -->\nafter\n"

    made = filled(page, tmp_path)

    assert "old" not in made and "| way | 12.0 (11.0-13.0) | 3 | 2.0 |" in made
    assert made.startswith("before\n") and made.endswith("<!-- end -->\nafter\n")
    assert "Measured 2026-01-02 on a, 2 cores; no GPU" in made
    assert filled(made, tmp_path) == made


def test_a_missing_result_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"gone\.json"):
        filled("<!-- bench gone -->\n<!-- end -->", tmp_path)
