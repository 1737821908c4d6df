"""``bench ttft`` on an engine without a model."""

from __future__ import annotations

import json

import pytest
from speed_fakes import Silent, TieredFake, count_hits_of, fake_bed

from inferscale_sdk.bench.speed.arms import Arm
from inferscale_sdk.bench.speed.contenders import Case, PastedByMem0, contenders_for
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.ttft import TTFTOptions, measure_ttft
from inferscale_sdk.errors import ConfigurationError, EngineError
from inferscale_sdk.protocol import salt_matches

ARMS = (Arm.PROMPT, Arm.REPEATED, Arm.INJECT, Arm.LIVE, Arm.DISK, Arm.CACHED)
SMALL = TTFTOptions(ks=(0, 3, 8), arms=ARMS, requests=4, questions=2, answer_tokens=3)


@pytest.fixture
def bed(tmp_path, monkeypatch):
    with fake_bed(tmp_path) as made:
        count_hits_of(monkeypatch, made.engine)
        yield made


def test_every_arm_is_timed_as_often_as_asked_for_and_the_sum_is_proved(bed):
    listener = Silent()

    result = measure_ttft(bed, SMALL, Stages(listener))

    counts = {key: len(group) for key, group in result.seen.items()}
    floor = {(arm, 0): 4 for arm in (Arm.PROMPT, Arm.INJECT, Arm.CACHED)}
    assert counts == floor | {(arm, k): 4 for arm in ARMS for k in (3, 8)}
    assert listener.told["Asking"][0] == listener.told["Asking"][1]
    assert result.proved
    assert result.injected_tokens > 0


def test_the_json_has_the_agreed_names(bed):
    out = json.loads(json.dumps(measure_ttft(bed, SMALL, Stages(Silent())).as_dict()))

    for arm in ("prompt", "inject", "cached"):
        assert set(out["ttft_ms"][arm]) == {"k0", "k3", "k8"}
        assert all(ms > 0 for ms in out["ttft_ms"][arm].values())
    cell = out["cells"]["inject"]["k8"]
    assert cell["requests"] == cell["fully_injected"] == 4
    assert cell["injected_tokens"] >= cell["memory_tokens"] > 0
    assert cell["ttft_ms"]["n"] == 4
    assert cell["ttft_ms"]["p25"] <= cell["ttft_ms"]["median"] <= cell["ttft_ms"]["p75"]
    assert cell["query_to_first_token_ms"]["median"] > cell["ttft_ms"]["median"]
    assert cell["tpot_ms"]["n"] == 4 and cell["itl_ms"]["n"] == 8
    assert out["cells"]["prompt"]["k8"]["injected_tokens"] == 0
    assert out["ratios"]["prompt_over_inject"]["k8"] == pytest.approx(
        out["ttft_ms"]["prompt"]["k8"] / out["ttft_ms"]["inject"]["k8"], abs=1e-3
    )
    assert set(out["ratios"]["disk_over_ceiling"]) == {"k3", "k8"}


def test_all_arms_but_repeated_send_the_same_tokens(bed):
    entered = contenders_for(bed, ARMS)
    case = Case(0, "What do I like?", 8, 3)

    plans = {arm: entry.plan(case) for arm, entry in entered.items()}

    same = {plans[arm].token_ids for arm in ARMS if arm is not Arm.REPEATED}
    assert len(same) == 1
    repeated = plans[Arm.REPEATED]
    assert set(repeated.fact_ids) == set(plans[Arm.PROMPT].fact_ids)
    assert repeated.fact_ids != plans[Arm.PROMPT].fact_ids
    assert {arm for arm in ARMS if plans[arm].segments} == {Arm.INJECT, Arm.LIVE, Arm.DISK}
    keys = [segment.key for segment in plans[Arm.DISK].segments]
    assert salt_matches(plans[Arm.DISK].cache_salt, keys)
    # What Memory does by default: the best fact, which stands last, is computed.
    assert [segment.key for segment in plans[Arm.LIVE].segments] == keys[:-1]
    assert salt_matches(plans[Arm.LIVE].cache_salt, keys[:-1])


def test_only_ceiling_and_repeated_have_a_salt_that_stays(bed):
    entered = contenders_for(bed, ARMS)
    case = Case(0, "What do I like?", 8, 3)

    salts = {arm: {entry.plan(case).cache_salt for _ in range(3)} for arm, entry in entered.items()}

    stays = {arm for arm, found in salts.items() if len(found) == 1}
    assert stays == {Arm.CACHED, Arm.REPEATED}


def test_the_ceilings_prompt_lies_in_the_cache_before_it_is_timed(bed):
    measure_ttft(bed, TTFTOptions(ks=(3,), arms=(Arm.CACHED,), requests=2), Stages(Silent()))

    asked = [(p.token_ids, p.cache_salt) for p in bed.engine.prompts]
    assert asked[0::2] == asked[1::2]


def test_a_disk_arm_whose_segments_are_still_in_memory_is_refused(bed):
    bed.engine.room = 100
    entry = contenders_for(bed, (Arm.DISK, Arm.INJECT))[Arm.DISK]
    case = Case(0, "What do I like?", 8, 3)
    bed.engine.generate(entry.plan(case))

    with pytest.raises(EngineError, match="host, disk"):
        entry.ready(case)


def test_a_counter_that_disagrees_is_no_proof(bed, monkeypatch):
    from inferscale_sdk.bench.speed import ttft

    monkeypatch.setattr(ttft, "settled_counter", lambda read, **_: read() - 1)

    assert not measure_ttft(bed, SMALL, Stages(Silent())).proved


def test_mem0_pastes_what_it_finds_and_takes_part(bed):
    class Finder:
        def search(self, query, top_k):
            return [f"fact {i} for {query}" for i in range(top_k)]

    mem0 = PastedByMem0(bed.engine, bed.memory, Finder())

    result = measure_ttft(bed, SMALL, Stages(Silent()), mem0=mem0)

    assert len(result.seen[Arm.MEM0, 8]) == 4
    text = bed.engine.prompt_text(result.seen[Arm.MEM0, 3][0].plan)
    assert "- fact 2 for" in text and "- fact 3 for" not in text
    assert set(result.as_dict()["ratios"]["mem0_over_inject"]) == {"k3", "k8"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ks": ()}, "k="),
        ({"ks": (-1,)}, "k=-1"),
        ({"ks": (5, 5)}, "k=5,5"),
        ({"requests": 0}, "requests=0"),
        ({"answer_tokens": 0}, "answer_tokens=0"),
    ],
)
def test_bad_numbers_are_named(options, named):
    with pytest.raises(ConfigurationError, match=named):
        TTFTOptions(**options)


def test_a_plan_without_kv_cannot_stand_for_injection(tmp_path):
    engine = TieredFake(can_inject=False)
    with fake_bed(tmp_path, engine=engine) as bed:
        entry = contenders_for(bed, (Arm.INJECT,))[Arm.INJECT]

        with pytest.raises(EngineError, match="inferscale doctor"):
            entry.plan(Case(0, "What do I like?", 3, 3))
