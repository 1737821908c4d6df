import json

import pytest

from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm
from inferscale_sdk.demo.report import Answer, DemoReport, Sample, cells_of

MS = {Arm.PROMPT: 600.0, Arm.INJECT: 100.0, Arm.CACHED: 80.0}


def report(injected: int = 90, hits: int = 90) -> DemoReport:
    samples = [
        Sample(arm, k, q, MS[arm] * k / 50 + q, 30, 10, 20, 0)
        for arm in reversed(BASIC_ARMS)
        for k in (50, 5)
        for q in range(3)
    ]
    return DemoReport(
        model="smol",
        facts=130,
        encoded=0,
        cells=cells_of(samples),
        answers=tuple(
            Answer(f"q{q}", "a", k, True, dict.fromkeys(BASIC_ARMS, "yes"))
            for q in range(3)
            for k in (5, 50)
        ),
        injected_tokens=injected,
        external_hits_delta=hits,
        seconds={"start": 1.234},
    )


def test_cells_stand_in_a_fixed_order():
    assert [(cell.k, cell.arm) for cell in report().cells] == [
        (k, arm) for k in (5, 50) for arm in BASIC_ARMS
    ]


def test_ratios_are_ratios_of_medians():
    assert report().speedup(50) == pytest.approx(601 / 101)
    assert report().over_ceiling(50) == pytest.approx(101 / 81)


@pytest.mark.parametrize(
    ("injected", "hits", "proved"),
    [(90, 90, True), (90, 89, False), (90, 91, False), (0, 0, False)],
)
def test_only_vllms_own_count_proves_it(injected, hits, proved):
    assert report(injected, hits).proved is proved


def test_the_json_object_has_the_agreed_names():
    out = json.loads(json.dumps(report().as_dict()))

    assert out["ttft_ms"]["prompt"]["k50"] == 601
    assert out["ttft_ms"]["inject"]["k5"] == 11
    assert out["ttft_ms"]["inject"]["k50"] == 101
    assert out["ttft_ms"]["cached"]["k50"] == 81
    assert out["speedup_k50"] == pytest.approx(5.95, abs=0.01)
    assert out["over_ceiling_k50"] == pytest.approx(1.247, abs=0.01)
    assert (out["model"], out["questions"]) == ("smol", 3)
    assert out["injected_tokens"] == out["external_hits_delta"] == 90
    assert out["answers"][0]["inject"] == "yes"
