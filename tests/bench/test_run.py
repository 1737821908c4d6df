"""The whole measurement on the sample life: few facts, few questions, the real model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from inferscale_sdk.bench.quality.arms import parse_arm
from inferscale_sdk.bench.quality.dataset import load_locomo
from inferscale_sdk.bench.quality.material import ArrivalRelatives, Material
from inferscale_sdk.bench.quality.report import summarise
from inferscale_sdk.bench.quality.results import ResultFile
from inferscale_sdk.bench.quality.run import Cell, QualityOptions, QualityRun
from inferscale_sdk.bench.quality.windows import BehindSummary
from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.testing.fake_embedder import FakeEmbedder


@pytest.fixture(scope="module")
def material(life_file, tmp_path_factory):
    (talk,) = load_locomo(life_file, "turns").conversations
    material = Material(talk, tmp_path_factory.mktemp("m"), FakeEmbedder(), seed=0)
    yield material, talk
    material.close()


def test_guaranteed_evidence_is_among_exactly_k_facts(material):
    material, talk = material
    for question in talk.questions:
        natural = material.recalled(question, 4, "natural")
        chosen = material.recalled(question, 4, "guaranteed")
        assert len(natural) == len(chosen) == len({f.id for f in chosen}) == 4
        gold = {fact.id for fact in material.evidence(question)}
        assert gold and gold <= {fact.id for fact in chosen}
        ranks = [material.ranked(question).index(fact) for fact in chosen]
        assert ranks == sorted(ranks), "recall's order stays"


def test_another_memory_shares_nothing_with_the_question(material):
    material, talk = material
    for question in talk.questions:
        others = material.others(question, 10)
        used = {f.id for f in material.recalled(question, 10, "guaranteed")}
        assert len({fact.id for fact in others} - used) == len(others) == 10
        assert others == material.others(question, 10), "the same every time"


def test_arrival_relatives_are_those_that_were_there(material):
    material, _ = material
    fact = material.facts[30]
    assert all(
        f.position < 30 for f in ArrivalRelatives(material, same_session=False).nearest(fact, 5)
    )
    session = fact.metadata["session"]
    batch = ArrivalRelatives(material, same_session=True).nearest(fact, 5)
    assert all(f.metadata["session"] <= session for f in batch)


@pytest.mark.parametrize("w", [0, 10])
def test_a_summary_stands_in_front_of_its_own_sessions_facts(material, w):
    material, _ = material
    summary = replace(material.facts[0], id="fsummary2", text="What session two was about.")
    inner = PrecedingTurns(w, 8)
    batches = list(BehindSummary(inner, {2: summary}).batches(material.facts, material.store))
    assert [f for batch in batches for f in batch.facts] == list(material.facts)
    for batch in batches:
        (session,) = {fact.metadata["session"] for fact in batch.facts}
        assert (summary in batch.window) == (session == 2)
        window = [fact for fact in batch.window if fact != summary]
        assert batch.window[-len(window) :] == tuple(window) if window else True
        first = material.facts.index(batch.facts[0])
        assert window == list(material.facts[first - len(window) : first])
        assert len(window) >= min(w, first)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("w20", "injected/preceding-20/best-last/0/0/True//0"),
        ("w20/bare", "injected/preceding-20/best-last/0/0/False//0"),
        ("related5+3/live2", "injected/related-5+3/best-last/2/0/True//0"),
        ("related5x4", "injected/related-5x4/best-last/0/0/True//0"),
        ("related5/arrival", "injected/related-5/best-last/0/0/True/arrival/0"),
        (
            "w20,related5x4/live1",
            "injected/mean-of-preceding-20-and-related-5x4/best-last/1/0/True//0",
        ),
        ("prompt/time/top5", "prompt//time/0/5/True//0"),
        ("again", "prompt//best-last/0/0/True//96"),
        ("w20/twice", "injected/preceding-20/best-last/0/0/True//0/twice"),
        ("w10/summary", "injected/preceding-10/best-last/0/0/True//0/summary"),
    ],
)
def test_arms_are_named_by_what_they_do(name, spec):
    assert parse_arm(name).spec == spec


@pytest.mark.parametrize("option", ["twice", "summary"])
def test_an_option_changes_both_readings(material, option):
    material, _ = material
    mean = parse_arm(f"default/{option}").strategy(material)
    assert mean.first_reading.name == f"preceding-20-{option}"
    assert mean.second_reading.name == f"related-5x4-{option}"


@pytest.mark.parametrize("name", ["w", "nearest5", "w20/loud", "", "prompt5", "w20,", "w20,none"])
def test_unknown_arms_are_named(name):
    with pytest.raises(ConfigurationError, match="unknown"):
        parse_arm(name)


@pytest.mark.engine
def test_a_stopped_run_goes_on_and_a_report_adds_up(life_file, model_path, tmp_path, silent):
    options = QualityOptions(
        data=life_file,
        model=str(model_path),
        work=tmp_path,
        arms=("again", "related2", "related1/live2", "related3,related2"),
        ks=(5,),
        evidence=("natural", "guaranteed"),
        unit="turns",
        questions=1,
        answers=True,
    )
    measured = QualityRun(options, FakeEmbedder(), silent).run()
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-2]) + "\n" + lines[-1][:40])  # stopped while writing
    again = QualityRun(options, FakeEmbedder(), silent)
    second = again.run()
    assert len(path.read_text().splitlines()) == len(lines)
    report, same = (summarise(m, model="m", data="d") for m in (measured, second))
    assert [row.as_dict() for row in report.rows] == [row.as_dict() for row in same.rows]

    data = json.loads(json.dumps(report.as_dict()))
    kept = data["useful_information_kept"]
    assert kept["prompt"] == 1.0 and kept["other"] == 0.0
    rows = {(row.arm, row.evidence): row for row in report.rows}
    full, related = rows["prompt", "natural"], rows["related2", "natural"]
    assert related.prompt_tokens == full.prompt_tokens == full.prefilled_tokens
    assert related.prefilled_tokens < full.prefilled_tokens / 2
    assert rows["related1/live2", "natural"].prefilled_tokens > related.prefilled_tokens
    mean = rows["related3,related2", "natural"]
    assert mean.prefilled_tokens == related.prefilled_tokens
    assert 0 < mean.kl < 5 and mean.nll != related.nll
    assert related.nll_difference.value == pytest.approx(related.nll - full.nll)
    assert 0 < related.kl < 5 and rows["again", "natural"].kl < 0.02
    told = [row for row in report.rows if row.arm != "other"]
    assert all(row.f1 is not None and row.f1_difference is not None for row in told)
    result = second.results["prompt"][Cell(5, "natural")]
    assert all(r.answer for r in result.values())


def test_a_foreign_line_in_the_results_is_named(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(StoreError, match=r"line 1 .*results\.jsonl"):
        ResultFile(tmp_path)
