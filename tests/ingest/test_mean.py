"""Facts read in two windows."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import ConfigurationError, EngineUnavailable
from inferscale_sdk.ingest.mean import MeanOfWindows
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.retry import RetryPolicy
from inferscale_sdk.ingest.turns import RelatedTurns
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.protocol import Reason
from inferscale_sdk.types import Namespace

ALICE = Namespace(user_id="alice")
FIRST, SECOND = PrecedingTurns(2, 3), PrecedingTurns(4, 2)


def requests(engine, *, second):
    """Encode plans of one reading."""
    return [
        plan for plan in engine.encodes if any(span.beside for span in plan.op.captures) is second
    ]


def test_every_fact_is_read_twice_and_the_second_reading_is_recorded(
    store, add, engine, make_encoder
):
    facts = add(6)
    encoder = make_encoder(MeanOfWindows(FIRST, SECOND))
    done = encoder.run_once()
    assert (done.encoded, done.failed, done.requests, done.pending) == (6, 0, 2 + 3, 0)
    ids = [fact.id for fact in facts]
    first, second = requests(engine, second=False), requests(engine, second=True)
    assert [i for plan in first for i in plan.fact_ids] == ids
    assert [i for plan in second for i in plan.fact_ids] == ids
    spans = [span for plan in first for span in plan.op.captures]
    readings = dict(zip(ids, spans[1:], strict=True))  # the preamble comes first, once
    means = {i: s for p in second for i, s in zip(p.fact_ids, p.op.captures, strict=True)}
    assert {i: span.beside for i, span in means.items()} == {
        i: span.key for i, span in readings.items()
    }
    records = store.encodings(ids, encoder.profile())
    assert {i: record.key for i, record in records.items()} == {
        i: span.key for i, span in means.items()
    }
    own = sum(record.n_tokens for record in records.values())
    assert (done.own_tokens, done.prompt_tokens) == (
        own,
        sum(len(plan.token_ids) for plan in engine.encodes),
    )


def test_first_readings_are_forgotten_when_they_have_served(store, add, engine, make_encoder):
    facts = add(4)
    encoder = make_encoder(MeanOfWindows(FIRST, SECOND))
    done = encoder.run_once()
    records = store.encodings([f.id for f in facts], encoder.profile())
    preamble = engine.encodes[0].op.captures[0].key
    assert set(engine.segments) == {preamble, *(r.key for r in records.values())}
    assert done.forgotten == 0, "no fact's KV"
    assert store.forget_queue() == []


def test_first_readings_are_nobody_elses_kv(store, add, engine, make_encoder):
    """Another memory on the same store may use the first window alone, and keep what it has."""
    facts = add(4)
    alone = make_encoder(FIRST)
    alone.run_once()
    kept = {r.key for r in store.encodings([f.id for f in facts], alone.profile()).values()}
    make_encoder(MeanOfWindows(FIRST, SECOND)).run_once()
    assert kept <= set(engine.segments)


def test_the_record_names_what_stood_before_in_either_reading(store, add, make_encoder):
    ids = [fact.id for fact in add(6)]
    encoder = make_encoder(MeanOfWindows(PrecedingTurns(1, 1), PrecedingTurns(3, 1)))
    encoder.run_once()
    assert store.encodings(ids, encoder.profile())[ids[5]].context_fact_ids == tuple(ids[2:5])
    swapped = make_encoder(MeanOfWindows(PrecedingTurns(3, 1), PrecedingTurns(1, 1)))
    swapped.run_once()
    context = store.encodings(ids, swapped.profile())[ids[5]].context_fact_ids
    assert set(context) == set(ids[2:5])


def test_a_changed_relative_of_the_first_reading_drops_the_mean(store, add, engine, make_encoder):
    facts = add(6)
    encoder = make_encoder(MeanOfWindows(PrecedingTurns(3, 1), PrecedingTurns(1, 1)))
    encoder.run_once()
    store.delete(facts[2].id, ALICE)  # before facts[5] in its first reading alone
    assert facts[5].id not in store.encodings([facts[5].id], encoder.profile())
    encoder.drain()
    assert encoder.is_done()


def test_a_relative_that_changes_between_the_readings_is_noticed(
    store, add, engine, make_encoder, monkeypatch
):
    facts = add(6)
    encoder = make_encoder(MeanOfWindows(PrecedingTurns(3, 3), PrecedingTurns(1, 1)))
    encode = engine.encode

    def changed_meanwhile(plan):
        if plan.op.captures[0].beside and facts[5].id in plan.fact_ids:
            monkeypatch.setattr(engine, "encode", encode)
            store.update(facts[2].id, ALICE, text="something else by now")
        return encode(plan)

    monkeypatch.setattr(engine, "encode", changed_meanwhile)
    encoder.run_once()
    assert facts[5].id not in store.encodings([facts[5].id], encoder.profile())
    encoder.drain()
    assert encoder.is_done()


def test_an_engine_lost_between_the_readings_leaves_nothing_behind(
    store, add, engine, make_encoder, monkeypatch
):
    add(4)
    encoder = make_encoder(MeanOfWindows(FIRST, SECOND))
    encode = engine.encode

    def gone_for_the_second(plan):
        if any(span.beside for span in plan.op.captures):
            raise EngineUnavailable("gone")
        return encode(plan)

    monkeypatch.setattr(engine, "encode", gone_for_the_second)
    with pytest.raises(EngineUnavailable):
        encoder.run_once()
    assert len(store.forget_queue()) == 4
    monkeypatch.setattr(engine, "encode", encode)
    done = encoder.run_once()
    assert (done.encoded, done.pending) == (4, 0)
    assert store.forget_queue() == []


def test_a_reading_the_engine_lost_is_made_again_and_waits_longer_each_time(
    store, add, engine, make_encoder, monkeypatch
):
    add(1)
    encoder = make_encoder(
        MeanOfWindows(FIRST, SECOND), retry=RetryPolicy(base_seconds=10.0, max_seconds=1e3)
    )
    encode = engine.encode

    def evicted(plan):
        for span in plan.op.captures:
            engine.segments.pop(span.beside, None) if span.beside else None
        return encode(plan)

    monkeypatch.setattr(engine, "encode", evicted)
    done = encoder.run_once()
    assert (done.encoded, done.failed, done.pending) == (0, 1, 1)
    once = encoder.next_retry_in()
    encoder._parking.ready = list  # its time has come
    encoder.run_once()
    assert encoder.next_retry_in() > once
    monkeypatch.setattr(engine, "encode", encode)
    assert encoder.run_once().encoded == 1
    assert encoder.is_done()


def test_a_refused_first_reading_has_no_second(store, add, engine, make_encoder):
    add(3)
    engine.faults.refuse_encode = Reason.STORE_FAILED
    done = make_encoder(MeanOfWindows(FIRST, SECOND)).run_once()
    assert (done.encoded, done.failed) == (0, 3)
    assert requests(engine, second=True) == []


class Nearest(Relatives):
    def nearest(self, fact, n):
        return []


def test_both_windows_get_the_relatives():
    mean = MeanOfWindows(RelatedTurns(), RelatedFacts()).bound(Nearest())
    assert mean.name == "mean-of-related-10-preceding-10x10-and-related-5"
    assert mean.first.name == "related-10-preceding-10x10"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (FIRST, PrecedingTurns(2, 3), "differ"),
        (FIRST, MeanOfWindows(FIRST, SECOND), "mean of the mean"),
    ],
)
def test_two_windows_must_be_two(first, second, message):
    with pytest.raises(ConfigurationError, match=message):
        MeanOfWindows(first, second)
