from __future__ import annotations

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.ingest.default import default_window
from inferscale_sdk.ingest.encoder import Encoder
from inferscale_sdk.ingest.relatives import IndexRelatives
from inferscale_sdk.ingest.turns import RelatedTurns
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.recall.sync import sync
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

WORDS = ("boat", "cat", "rain", "bread", "chess")


@pytest.fixture
def relatives(store, tmp_path):
    index = HybridRecall(tmp_path / "recall.db", FakeEmbedder())

    def current():
        sync(store, index)
        return index

    yield IndexRelatives(store, current)
    index.close()


@pytest.fixture
def facts(add):
    return add(0, texts=[f"{WORDS[i % 5]} number{i}" for i in range(30)])


def test_relatives_stand_in_front_of_the_turns_before(store, facts, relatives):
    strategy = RelatedTurns(3, 2, 4).bound(relatives)
    turns = list(PrecedingTurns(3, 4).batches(facts, store))
    got = list(strategy.batches(facts, store))
    assert [b.facts for b in got] == [b.facts for b in turns]
    for both, only in zip(got, turns, strict=True):
        assert both.window[len(both.window) - len(only.window) :] == only.window
        near = both.window[: len(both.window) - len(only.window)]
        assert len(near) == 2
        assert not {f.id for f in near} & {f.id for f in (*only.window, *only.facts)}
        topics = {fact.text.split()[0] for fact in both.facts}
        assert {fact.text.split()[0] for fact in near} <= topics


def test_the_nearest_of_every_fact_counts_before_anybodys_second(store, facts, relatives):
    strategy = RelatedTurns(0, 2, 2).bound(relatives)
    (batch,) = strategy.batches(facts[:2], store)
    assert {f.text.split()[0] for f in batch.window} == {"boat", "cat"}


def test_a_lone_fact_has_both_windows(store, facts, relatives):
    (batch,) = RelatedTurns(4, 3, 8).bound(relatives).batches(facts[29:], store)
    assert batch.facts == (facts[29],)
    assert batch.window[-4:] == tuple(facts[25:29])
    assert len(batch.window) == 7


def test_without_relatives_it_is_the_turns_before(store, facts):
    got = list(RelatedTurns(3, 2, 4).batches(facts[8:12], store))
    assert len(got) == 1 and got[0].window[-3:] == tuple(facts[5:8])


def test_what_does_not_fit_is_split_and_nothing_is_lost(
    store, facts, engine, relatives, make_encoder
):
    engine._max_model_len = 220
    done = make_encoder(RelatedTurns(5, 5, 10).bound(relatives)).drain()
    assert (done.encoded, done.unencodable, done.pending) == (len(facts), 0, 0)
    assert all(len(plan.token_ids) <= 220 for plan in engine.encodes)


def test_names_tell_strategies_apart():
    made = [RelatedTurns(), RelatedTurns(9), RelatedTurns(10, 9), RelatedTurns(10, 10, 9)]
    assert len({strategy.name for strategy in made}) == 4


@pytest.mark.parametrize("kwargs", [{"related": 0}, {"w": -1}, {"group": 0}, {"max_tokens": 1}])
def test_bad_numbers_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match=r"must be|negative"):
        RelatedTurns(**kwargs)


def test_what_the_default_costs(store, add, engine, planner, relatives):
    """Less together, as an import stores facts, than alone: a lone fact pays for its window."""
    topics = ("boat", "cat", "rain", "bread", "chess")
    said = "Ann said about {}: remark number {} of a long talk"
    add(0, texts=[said.format(topics[i % 5], i) for i in range(200)])
    done = Encoder(store, engine, planner, default_window().bound(relatives)).drain()
    assert done.encoded == 200
    assert done.prompt_tokens <= 5.5 * done.own_tokens
    add(0, texts=[said.format("bread", 200)])
    one = Encoder(store, engine, planner, default_window().bound(relatives)).drain()
    assert one.encoded == 1
    assert one.prompt_tokens <= 30 * one.own_tokens
