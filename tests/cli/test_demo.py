"""How ``inferscale demo`` shows a report, and when it fails."""

from dataclasses import replace

import pytest

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm
from inferscale_sdk.demo import run
from inferscale_sdk.demo.report import Answer, DemoReport, Sample, cells_of


@pytest.fixture
def report(monkeypatch):
    ms = {Arm.PROMPT: 600.0, Arm.INJECT: 100.0, Arm.CACHED: 80.0}
    made = DemoReport(
        model="smol",
        facts=156,
        encoded=0,
        cells=cells_of(
            [Sample(arm, k, 0, ms[arm], 30, 10, 20, 0) for arm in BASIC_ARMS for k in (5, 50)]
        ),
        answers=tuple(
            Answer("What? [sic]", "a", k, True, dict.fromkeys(BASIC_ARMS, "b")) for k in (5, 50)
        ),
        injected_tokens=20,
        external_hits_delta=20,
        seconds={"start": 1.0},
    )
    monkeypatch.setattr(run, "run_demo", lambda _listener, _options: made)
    return made


def test_a_proved_report_is_shown_and_exits_with_0(cli, report):
    text = cli("demo").stdout

    assert "6.00 times sooner" in text
    assert "1.25 of the ceiling's time" in text
    assert "What? [sic] (a)" in text
    assert "Proved: 20 prompt tokens" in text


def test_json_is_the_reports_own_object(cli, report):
    assert cli.json("demo") == report.as_dict()


def test_without_proof_it_exits_with_1(cli, report, monkeypatch):
    unproved = replace(report, external_hits_delta=19)
    monkeypatch.setattr(run, "run_demo", lambda _listener, _options: unproved)

    result = cli("demo", code=1)

    assert "not proved: 20 tokens were injected, but vLLM counted 19" in result.stderr
    assert "Proved" not in result.stdout
