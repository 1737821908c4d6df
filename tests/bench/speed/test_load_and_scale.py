"""``bench throughput``, ``ingest`` and ``scale`` on an engine without a model."""

from __future__ import annotations

import json

import pytest
from speed_fakes import Silent, TieredFake, count_hits_of, fake_bed

from inferscale_sdk.bench.speed import throughput as throughput_module
from inferscale_sdk.bench.speed.arms import Arm
from inferscale_sdk.bench.speed.corpus import Corpus, load_corpus
from inferscale_sdk.bench.speed.ingest import IngestOptions, ingest_memory, measure_ingest
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.scale import RepeatingEmbedder, ScaleOptions, measure_scale
from inferscale_sdk.bench.speed.tables import tables_of
from inferscale_sdk.bench.speed.throughput import ThroughputOptions, measure_throughput
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.testing.fake_embedder import FakeEmbedder


@pytest.fixture
def bed(tmp_path, monkeypatch):
    with fake_bed(tmp_path) as made:
        count_hits_of(monkeypatch, made.engine, throughput_module)
        yield made


def measured(bed, **options):
    wanted = ThroughputOptions(**{"users": (1, 3), "k": 5, "output_tokens": (2,)} | options)
    return json.loads(json.dumps(measure_throughput(bed, wanted, Stages(Silent()))))


def test_every_load_is_served_by_every_arm_and_proved(bed):
    out = measured(bed)

    assert [(c["users"], c["arm"], c["requests"]) for c in out["closed"]] == [
        (users, arm, 2 * users) for users in (1, 3) for arm in ("prompt", "inject", "cached")
    ]
    assert out["proved"] and out["injected_tokens"] > 0
    assert {c["injected_tokens"] > 0 for c in out["closed"] if c["arm"] == "inject"} == {True}
    rates = {c["arm"]: c["requests_per_second"] for c in out["closed"] if c["users"] == 3}
    row = out["ratios"]["3 users, 2 output tokens"]
    assert row["inject_over_prompt"] == pytest.approx(rates["inject"] / rates["prompt"], abs=1e-3)
    assert set(row) == {"inject_over_prompt", "inject_over_cached"}


def test_no_user_shares_a_salt_with_another(bed):
    measured(bed, users=(4,))

    salts = {}
    for plan in bed.engine.prompts:
        salts.setdefault(plan.cache_salt.split("-")[1], []).append(plan.cache_salt)
    assert len(set(salts["prompt"])) == len(salts["prompt"]) == 8
    # Once to leave the prompt there, twice against the clock.
    assert sorted(salts["cached"].count(salt) for salt in set(salts["cached"])) == [3] * 4


def test_poisson_loads_count_what_came_in_time(bed):
    out = measured(bed, users=(), rates=(200.0,), arrivals=6, objective_ms=1e6)

    assert [cell["arm"] for cell in out["poisson"]] == ["prompt", "inject", "cached"]
    for cell in out["poisson"]:
        assert cell["within_objective"] == 1.0
        assert cell["goodput_per_second"] == pytest.approx(cell["requests_per_second"], rel=1e-3)
    late = measured(bed, users=(), rates=(200.0,), arrivals=6, objective_ms=1e-9)
    assert {cell["goodput_per_second"] for cell in late["poisson"]} == {0.0}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"users": (0,)}, "users"),
        ({"requests": 0}, "requests=0"),
        ({"rates": (0.0,)}, "rates"),
        ({"arms": (Arm.PROMPT, Arm.DISK)}, "disk"),
    ],
)
def test_bad_loads_are_named(options, named):
    with pytest.raises(ConfigurationError, match=named):
        ThroughputOptions(**options)


def test_windows_at_once_need_fewer_requests(tmp_path):
    engine = TieredFake()
    make = ingest_memory(engine, tmp_path, FakeEmbedder())
    options = IngestOptions(window=4, facts=12, single_facts=6, rounds=2)

    out = measure_ingest(make, options, load_corpus(None), Stages(Silent()))

    assert out["ways"]["batched"]["requests"] == 3
    assert out["ways"]["single"]["requests"] == 6
    assert out["ways"]["batched"]["facts_per_second"]["n"] == 2
    batched, single = (out["ways"][n]["prompt_tokens_per_own_token"] for n in ("batched", "single"))
    assert 1.5 < batched < single / 2
    assert out["batched_over_single"] > 0
    windows = {len(plan.context_fact_ids[0]) for plan in engine.encodes if plan.fact_ids}
    assert 4 in windows


def test_a_growing_store_is_asked_at_every_size(tmp_path):
    options = ScaleOptions(sizes=(40, 120), in_namespace=50, per_namespace=30, k=5, requests=3)
    engine = TieredFake()

    out = measure_scale(
        engine, tmp_path, FakeEmbedder(), options, load_corpus(None), Stages(Silent())
    )

    first, second = json.loads(json.dumps(out))["sizes"]
    assert (first["facts"], first["facts_in_namespace"], first["namespaces"]) == (40, 20, 2)
    assert (second["facts"], second["facts_in_namespace"], second["namespaces"]) == (120, 50, 4)
    assert second["recall_ms"]["n"] == second["both_ms"]["n"] == 3
    assert second["files_mib"] > 0
    # What is planned has KV: every fact of the one who is asked was encoded.
    assert len(engine.segments) == 50 + 1


def test_a_numbered_text_has_the_vector_of_the_text():
    class Counting(FakeEmbedder):
        texts = 0

        def embed(self, texts):
            self.texts += len(texts)
            return super().embed(texts)

    inner = Counting()
    embedder = RepeatingEmbedder(inner)
    facts = Corpus("two", ("I sail.", "I bake.")).facts(6)

    vectors = embedder.embed(facts)

    assert inner.texts == 2
    assert (vectors[0::2] == vectors[0]).all() and (vectors[1::2] == vectors[1]).all()
    assert embedder.name != inner.name


@pytest.mark.parametrize("sizes", [(), (1,), (10, 10), (20, 10)])
def test_bad_sizes_are_named(sizes):
    with pytest.raises(ConfigurationError, match="sizes"):
        ScaleOptions(sizes=sizes)


def test_a_load_is_shown_as_tables(bed):
    out = measured(bed, rates=(500.0,), arrivals=3)

    shown = dict(tables_of({"bench": "throughput", **out}))

    assert "| 2 | 3 | injected from host memory |" in shown["Concurrent users"]
    assert any("Poisson" in title for title in shown)
