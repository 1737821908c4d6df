"""Facts read in two windows."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import (
    ConfigurationError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    StoreError,
)
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.ingest.default import default_window
from inferscale_sdk.ingest.encoder import Encoder
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
    assert len(engine.forgotten) == 4, "or queued, where the engine cannot be told either"
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


class Near(Relatives):
    """Those somebody names."""

    def __init__(self, store=None, ids=()):
        self.store, self.ids = store, dict(ids)

    def nearest(self, fact, n):
        return self.store.get_many(self.ids.get(fact.id, [])[:n], fact.namespace)


def update_in_the_first_request(engine, store, fact, monkeypatch):
    encode = engine.encode

    def updating(plan):
        monkeypatch.setattr(engine, "encode", encode)
        store.update(fact.id, ALICE, text="This reads otherwise from now on")
        return encode(plan)

    monkeypatch.setattr(engine, "encode", updating)


def behind(engine, store, encoder, facts, line):
    """Ids of facts whose recorded KV was computed behind ``line``, in either reading."""
    prompts = {
        span.key: (plan.token_ids[: span.start], span.beside)
        for plan in engine.encodes
        for span in plan.op.captures
    }
    found = []
    for record in store.encodings([f.id for f in facts], encoder.profile()).values():
        ids, beside = prompts[record.key]
        both = (ids, prompts[beside][0])
        n = len(line)
        if any(list(i[at : at + n]) == line for i in both for at in range(len(i))):
            found.append(record.fact_id)
    return found


def test_what_was_read_behind_an_old_text_is_never_recorded(
    store, add, engine, make_encoder, planner, monkeypatch
):
    """One request may know two versions of a fact; that the newer one holds is not enough."""
    old, new = add(2)
    near = RelatedFacts(5, relatives=Near(store, {new.id: [old.id]}))
    encoder = make_encoder(MeanOfWindows(near, PrecedingTurns(4, 4)))
    line = planner._line_ids(old)
    update_in_the_first_request(engine, store, old, monkeypatch)
    encoder.run_once()
    assert behind(engine, store, encoder, [old, new], line) == []


def test_nor_with_the_default(store, add, engine, make_encoder, planner, monkeypatch):
    facts = add(25)
    changed, first, second = facts[18], facts[19], facts[20]
    near = Near(store, {facts[3].id: [changed.id, second.id, first.id]})
    encoder = make_encoder(default_window().bound(near))
    line = planner._line_ids(changed)
    update_in_the_first_request(engine, store, changed, monkeypatch)
    encoder.drain()
    assert behind(engine, store, encoder, facts, line) == []
    encoder.drain()
    assert encoder.is_done()


def test_a_deletion_between_the_readings_takes_what_was_read_first(
    store, add, engine, make_encoder, monkeypatch
):
    """Queued before the next request, and no second reading repeats the words."""
    facts = add(6)
    encoder = make_encoder(MeanOfWindows(PrecedingTurns(1, 3), PrecedingTurns(2, 3)))
    encode, seen = engine.encode, []

    def deleting(plan):
        answer = encode(plan)
        if len(engine.encodes) == 2:
            store.delete(facts[4].id, ALICE, hard=True)
        elif len(engine.encodes) == 3:
            seen.extend(store.forget_queue())
        return answer

    monkeypatch.setattr(engine, "encode", deleting)
    encoder.run_once()
    readings = [span.key for plan in engine.encodes[:2] for span in plan.op.captures[-3:]]
    assert set(readings[4:]) <= set(seen)
    assert facts[4].id not in [i for plan in engine.encodes[2:] for i in plan.fact_ids]


@pytest.mark.parametrize("error", [EngineError, EngineTimeout, StoreError])
def test_facts_are_encoded_also_where_nothing_can_be_forgotten(
    store, add, engine, make_encoder, error
):
    add(30)
    encoder = make_encoder(MeanOfWindows(FIRST, SECOND))

    def forget(keys):
        raise error("a tier does not answer")

    engine.forget = forget
    for _ in range(4):
        encoder.run_once(8)
    assert encoder.is_done()
    assert len(store.forget_queue()) == 30, "and nothing is lost sight of"


def test_two_encoders_keep_their_first_readings_apart(
    store, add, engine, make_encoder, planner, tmp_path, monkeypatch
):
    facts = add(4)
    mean = MeanOfWindows(FIRST, SECOND)
    other_store = SQLiteFactStore(tmp_path / "facts.db")
    one, other = make_encoder(mean), Encoder(other_store, engine, planner, mean)
    encode = engine.encode

    def overtaken(plan):
        if any(span.beside for span in plan.op.captures):
            monkeypatch.setattr(engine, "encode", encode)
            assert other.run_once().encoded == 4
        return encode(plan)

    monkeypatch.setattr(engine, "encode", overtaken)
    one.run_once()
    other_store.close()
    records = store.encodings([f.id for f in facts], one.profile())
    preamble = engine.encodes[0].op.captures[0].key
    assert set(engine.segments) == {preamble, *(r.key for r in records.values())}
    means = {s.key for p in requests(engine, second=True) for s in p.op.captures if s.beside}
    assert len(means) == 4, "the same facts in the same windows have the same keys"


class Forgetful(PrecedingTurns):
    """Captures nothing."""

    def batches(self, pending, store):
        return iter(())


def test_a_strategy_that_reads_once_only_does_not_run_for_ever(add, make_encoder):
    add(3)
    done = make_encoder(MeanOfWindows(FIRST, Forgetful(9))).drain(timeout=20)
    assert done.encoded == 0 and not done.reason


def test_both_windows_get_the_relatives():
    mean = MeanOfWindows(RelatedTurns(), RelatedFacts()).bound(Near())
    assert mean.name == "mean-of-related-10-preceding-10x10-and-related-5"
    assert mean.first_reading.name == "related-10-preceding-10x10"


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
