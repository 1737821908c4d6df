from __future__ import annotations

import logging

import pytest

from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.relatives import IndexRelatives, Relatives
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.recall.sync import sync
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.types import Namespace

ALICE, BOB = Namespace(user_id="alice"), Namespace(user_id="bob")
TUTOR = Namespace(user_id="alice", agent_id="tutor")

TOPICS = {
    "boat": ["red boat", "boat sails", "boat sank", "boat in May"],
    "cat": ["grey cat", "cat sleeps", "striped cat"],
    "rain": ["rain on Monday"],
}
# Topics take turns, so that what is related never stands side by side.
SAID = [
    "red boat",
    "grey cat",
    "boat sails",
    "cat sleeps",
    "boat sank",
    "rain on Monday",
    "striped cat",
    "boat in May",
]


@pytest.fixture
def index(tmp_path):
    index = HybridRecall(tmp_path / "recall.db", FakeEmbedder())
    yield index
    index.close()


@pytest.fixture
def relatives(store, index) -> Relatives:
    def current():
        sync(store, index)
        return index

    return IndexRelatives(store, current)


def topic(fact):
    return next(name for name, texts in TOPICS.items() if fact.text in texts)


def batches(strategy, store, facts):
    return list(strategy.batches(facts, store))


# -- relatives ---------------------------------------------------------------------------------


def test_the_nearest_are_about_the_same_and_never_the_fact_itself(add, relatives):
    facts = add(0, texts=SAID)
    for fact in facts:
        near = relatives.nearest(fact, len(TOPICS[topic(fact)]) - 1)
        assert fact not in near
        assert {topic(other) for other in near} <= {topic(fact)}


def test_relatives_are_of_the_very_same_owner(add, relatives):
    mine = add(0, ALICE, texts=SAID)
    add(0, TUTOR, texts=SAID)
    add(0, BOB, texts=SAID)
    near = relatives.nearest(mine[0], 50)
    assert {f.namespace for f in near} == {ALICE}
    assert len(near) == len(SAID) - 1


def test_others_facts_do_not_take_the_places(add, relatives):
    """A scope of a user covers all agents: hundreds of an agent's facts may be nearer."""
    add(0, TUTOR, texts=[f"red boat number {i}" for i in range(150)])
    mine = add(0, ALICE, texts=SAID)
    assert len(relatives.nearest(mine[0], 7)) == 7


def test_deleted_facts_are_nobodys_relatives(store, add, relatives):
    facts = add(0, texts=SAID)
    store.delete(facts[2].id, ALICE)
    assert facts[2].id not in {f.id for f in relatives.nearest(facts[0], 50)}


# -- windows -----------------------------------------------------------------------------------


def test_each_fact_stands_behind_its_relatives_the_nearest_last(store, add, relatives):
    facts = add(0, texts=SAID)
    got = batches(RelatedFacts(2, relatives=relatives), store, facts)
    assert [b.facts for b in got] == [(f,) for f in facts]
    for batch in got:
        near = relatives.nearest(batch.facts[0], 2)
        assert list(batch.window) == near[::-1]


def test_recent_facts_stand_in_front_and_none_stands_twice(store, add, relatives):
    facts = add(0, texts=SAID)
    (batch,) = batches(RelatedFacts(2, recent=3, relatives=relatives), store, facts[7:])
    near = relatives.nearest(facts[7], 2)
    recent = [f for f in facts[4:7] if f not in near]
    assert list(batch.window) == [*recent, *near[::-1]]


def test_groups_capture_every_fact_once_and_cost_less(store, add, relatives):
    facts = add(0, texts=SAID)
    strategy = RelatedFacts(2, group=3, relatives=relatives)
    got = batches(strategy, store, facts)
    assert sorted(f.id for b in got for f in b.facts) == sorted(f.id for f in facts)
    assert len(got) < len(facts)
    for batch in got:
        used = [f.id for f in (*batch.window, *batch.facts)]
        assert len(set(used)) == len(used)
        assert len(batch.window) <= 2 and len(batch.facts) <= 3
    boats = next(b for b in got if b.facts[-1] == facts[0])
    assert {topic(f) for f in boats.facts} == {"boat"}


def test_only_what_waits_is_captured(store, add, relatives):
    facts = add(0, texts=SAID)
    (batch,) = batches(RelatedFacts(2, group=4, relatives=relatives), store, facts[4:5])
    assert batch.facts == (facts[4],)
    assert len(batch.window) == 2


def test_without_anybody_to_ask_the_facts_before_stand_in(store, add):
    facts = add(0, texts=SAID)
    (batch,) = batches(RelatedFacts(3), store, facts[5:6])
    assert list(batch.window) == facts[2:5]


class Broken(Relatives):
    def nearest(self, fact, n):
        raise StoreError("the index is gone")


def test_a_failing_index_keeps_no_fact_from_being_encoded(store, add, caplog):
    facts = add(0, texts=SAID)
    with caplog.at_level(logging.WARNING):
        got = batches(RelatedFacts(3, relatives=Broken()), store, facts)
    assert [b.facts for b in got] == [(f,) for f in facts]
    assert list(got[5].window) == facts[2:5]
    assert len(caplog.records) == 1, "said once"
    assert "gone" not in caplog.text, "an error's own text may quote facts"


def test_binding_keeps_everything_else(relatives):
    loose = RelatedFacts(4, recent=2, group=3, max_tokens=500)
    bound = loose.bound(relatives)
    assert (bound.name, bound.max_tokens) == (loose.name, 500)
    assert bound.bound(Broken()) is bound


def test_names_tell_strategies_apart():
    made = [RelatedFacts(5), RelatedFacts(6), RelatedFacts(5, recent=2), RelatedFacts(5, group=2)]
    assert len({strategy.name for strategy in made}) == 4


@pytest.mark.parametrize(
    "kwargs", [{"related": 0}, {"recent": -1}, {"group": 0}, {"max_tokens": 1}]
)
def test_bad_numbers_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match=r"must be|negative"):
        RelatedFacts(**kwargs)


# -- the ledger --------------------------------------------------------------------------------


def test_deleting_or_changing_a_relative_encodes_again_behind_what_is_left(
    store, add, engine, relatives, make_encoder
):
    facts = add(0, texts=SAID)
    encoder = make_encoder(RelatedFacts(2, relatives=relatives))
    encoder.drain()
    old = store.encodings([f.id for f in facts], encoder.profile())
    assert set(old) == {f.id for f in facts}
    gone, changed = facts[2], facts[1]
    behind = {i for i, r in old.items() if {gone.id, changed.id} & set(r.context_fact_ids)}
    assert behind
    engine.encodes.clear()
    store.delete(gone.id, ALICE)
    store.update(changed.id, ALICE, text="grey cat, bell")
    encoder.drain()
    captured = {fact_id for plan in engine.encodes for fact_id in plan.fact_ids}
    assert captured == (behind | {changed.id}) - {gone.id}
    assert {old[i].key for i in behind | {gone.id, changed.id}} <= set(engine.forgotten)
    new = store.encodings([f.id for f in facts], encoder.profile())
    assert set(new) == {f.id for f in facts} - {gone.id}
    assert all(gone.id not in record.context_fact_ids for record in new.values())
    assert not any("boat sails" in engine.prompt_text(plan) for plan in engine.encodes)


def test_facts_that_arrive_one_by_one_are_encoded_behind_what_is_there(
    store, add, engine, relatives, make_encoder
):
    encoder = make_encoder(RelatedFacts(2, relatives=relatives))
    for number, text in enumerate(SAID):
        (fact,) = add(0, texts=[text])
        done = encoder.drain()
        assert (done.encoded, done.pending) == (1, 0), "nothing else is encoded again"
        record = store.encodings([fact.id], encoder.profile())[fact.id]
        assert len(record.context_fact_ids) == min(number, 2)


# -- what does not fit -------------------------------------------------------------------------


@pytest.mark.parametrize("context", [160, 220, 400, 900])
def test_groups_that_are_too_long_are_split_and_nothing_is_lost(
    store, add, engine, relatives, make_encoder, context
):
    facts = add(0, texts=[f"{text} {i}" for i in range(4) for text in SAID])
    engine._max_model_len = context
    strategy = RelatedFacts(4, group=6, relatives=relatives)
    encoder = make_encoder(strategy)
    done = encoder.drain()
    assert (done.encoded, done.unencodable, done.pending) == (len(facts), 0, 0)
    assert all(len(plan.token_ids) <= context for plan in engine.encodes)
