"""The model matrix: every family is exact, or refused with a reason; no deliberate fault survives.

Each case is an engine in a process of its own, about ten seconds. ``make models`` runs all of them
and writes the results into ``docs/models.md``; single ones (``make models ARGS='-k gemma'``)
replace their last results. ``make test`` runs the few that differ most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matrix_models import CASES, Case
from matrix_report import write_report

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "models.md"
RECORD = HERE.parents[1] / "build" / "models.json"
QUICK = {"gemma3", "wrong base-llama"}
RESULTS: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module", autouse=True)
def record():
    yield
    if not os.environ.get("INFERSCALE_RECORD_MODELS"):
        return
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known |= RESULTS
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(known))
    if set(known) >= set(CASES):
        DOCS.write_text(write_report(known))


def run(name: str, folder: Path) -> dict[str, Any]:
    from inferscale_sdk.models import bundled_model_path

    command = [sys.executable, str(HERE / "matrix_run.py"), name, str(folder)]
    done = subprocess.run(
        [*command, str(bundled_model_path())], capture_output=True, text=True, timeout=280
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("MATRIX-RESULT ")), None)
    assert line, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(line.removeprefix("MATRIX-RESULT "))
    RESULTS[name] = result
    return result


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in CASES],
)
def test_case(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    result = run(name, tmp_path)
    assert result["status"] != "error", result["reason"]
    {"exact": check_exact, "text_only": check_text_only, "caught": check_caught}[case.expect](
        case, result
    )


def check_exact(case: Case, result: dict[str, Any]) -> None:
    assert result["status"] == "exact", result["reason"]
    assert result["injected_tokens"] == 896
    if case.deterministic:
        assert result["same_logprobs"]
    else:
        # The engine does not agree with itself: no worse than that.
        assert result["logprob_gap_to_reference"] <= 1.5 * result["engine_noise"] + 1e-3
    assert result.get("moved_units", 0.0) <= 1.0


def check_text_only(case: Case, result: dict[str, Any]) -> None:
    assert result["status"] == "text_only"
    assert len(result["reason"]) > 40
    assert result["injected_as_text"]
    assert result["text_answer_same"]


def check_caught(case: Case, result: dict[str, Any]) -> None:
    """By the probe, which keeps it from every answer, or else by the comparison of answers."""
    if result["status"] == "text_only":
        assert result["injected_as_text"] and result["text_answer_same"]
    else:
        assert case.fault == "layers swapped"
        assert not result["same_logprobs"]
