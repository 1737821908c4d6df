"""What a report says of results worked out by hand."""

from __future__ import annotations

import pytest

from inferscale_sdk.bench.quality.report import summarise
from inferscale_sdk.bench.quality.results import Result
from inferscale_sdk.bench.quality.run import Cell, Measured

FEW, MANY = Cell(20, "natural"), Cell(50, "natural")
# By conversation and question: NLL with another memory, with the arm, with the full prompt.
NLLS = {
    FEW: {("a", "1"): (4.0, 3.0, 3.0), ("a", "2"): (5.0, 4.0, 3.0), ("b", "3"): (4.0, 2.0, 3.0)},
    MANY: {("a", "1"): (4.0, 2.0, 2.0), ("b", "3"): (4.0, 3.0, 3.0)},
}


def results(which: int) -> dict[Cell, dict[str, Result]]:
    return {
        cell: {
            question: Result(
                key=f"{cell}/{question}/{which}",
                conversation=talk,
                question=question,
                category=1,
                nll=nlls[which],
                kl=0.0,
                prompt_tokens=100,
                prefilled_tokens=10,
            )
            for (talk, question), nlls in found.items()
        }
        for cell, found in NLLS.items()
    }


@pytest.fixture(scope="module")
def report():
    measured = Measured({"prompt": results(2), "other": results(0), "arm": results(1)})
    return summarise(measured, model="m", data="d")


def test_each_choice_of_facts(report):
    kept = {(row.arm, row.k): row.kept.value for row in report.rows}
    assert kept["arm", 20] == pytest.approx((1 + 1 + 2) / (1 + 2 + 1))
    assert kept["arm", 50] == pytest.approx((2 + 1) / (2 + 1))
    assert kept["prompt", 20] == 1 and kept["other", 50] == 0


def test_all_choices_together_count_a_question_once(report):
    assert report.overall["arm"].value == pytest.approx(7 / 7)
    assert report.overall["arm"].n == 3
    assert {name: i.n for name, i in report.by_conversation["arm"].items()} == {"a": 2, "b": 1}


def test_conversations_over_all_choices(report):
    found = report.by_conversation["arm"]
    assert found["a"].value == pytest.approx((1 + 1 + 2) / (1 + 2 + 2))
    assert found["b"].value == pytest.approx((2 + 1) / (1 + 1))
    # One question has no other to be exchanged with.
    assert found["b"].low == found["b"].high == found["b"].value
    assert report.as_dict()["by_conversation"]["arm"]["b"]["value"] == pytest.approx(1.5)


def test_the_mean_of_conversations_weighs_each_alike(report):
    mean = report.mean_of_conversations["arm"]
    assert mean.value == pytest.approx((4 / 5 + 3 / 2) / 2)
    assert mean.n == 3
    assert report.as_dict()["mean_of_conversations"]["arm"]["value"] == mean.value
