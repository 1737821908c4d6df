from __future__ import annotations

from collections import Counter

import pytest

from inferscale_sdk.errors import EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.ingest.encoder import Encoder
from inferscale_sdk.ingest.retry import RetryPolicy
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.prompt.frame import DEFAULT_FRAME, Frame
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.protocol import Reason
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import Namespace

ALICE, BOB = Namespace(user_id="alice"), Namespace(user_id="bob")


def records(store, encoder, facts):
    return store.encodings([f.id for f in facts], encoder.profile())


def captured(engine):
    return [fact_id for plan in engine.encodes for fact_id in plan.fact_ids]


def test_everything_waiting_is_encoded_once(store, add, engine, make_encoder):
    facts = add(10)
    encoder = make_encoder()
    done = encoder.run_once()
    assert (done.encoded, done.failed, done.requests, done.pending) == (10, 0, 3, 0)
    assert captured(engine) == [f.id for f in facts]
    assert encoder.is_done()
    again = encoder.run_once()
    assert again.requests == 0
    assert set(records(store, encoder, facts)) == {f.id for f in facts}


def test_records_name_the_window(store, add, engine, make_encoder):
    facts = add(6)
    encoder = make_encoder(PrecedingTurns(2, 3))
    encoder.run_once()
    got = records(store, encoder, facts)
    ids = [f.id for f in facts]
    assert got[ids[0]].context_fact_ids == ()
    assert got[ids[2]].context_fact_ids == (ids[0], ids[1])
    assert got[ids[3]].context_fact_ids == (ids[1], ids[2])
    assert got[ids[5]].context_fact_ids == (ids[1], ids[2], ids[3], ids[4])
    assert all(r.key in engine.segments for r in got.values())


def test_a_restart_encodes_only_what_is_missing(tmp_path, add, store, engine, make_encoder):
    facts = add(12)
    make_encoder().run_once(5)
    first = set(captured(engine))
    assert 0 < len(first) < 12
    reopened = SQLiteFactStore(tmp_path / "facts.db")
    planner = Planner(engine.tokenizer, store_secret=reopened.secret)
    Encoder(reopened, engine, planner, PrecedingTurns(4, 4)).drain()
    assert captured(engine) == [f.id for f in facts], "nothing twice, nothing left out"
    reopened.close()


def test_limit_and_scope(add, engine, make_encoder):
    add(6, ALICE)
    bobs = add(6, BOB)
    encoder = make_encoder()
    done = encoder.run_once(4, scope=BOB)
    assert captured(engine) == [f.id for f in bobs[:4]]
    assert done.pending == 2
    assert not encoder.is_done(BOB)
    encoder.drain(scope=BOB)
    assert encoder.is_done(BOB)
    assert not encoder.is_done(ALICE)
    assert not encoder.is_done()


def test_progress_is_reported_after_every_request(add, make_encoder):
    add(10)
    seen = []
    done = make_encoder().drain(progress=seen.append)
    assert [p.encoded for p in seen] == [4, 8, 10]
    assert [p.pending for p in seen] == [6, 2, 0]
    assert seen[-1].requests == done.requests == 3


def test_500_facts_cost_at_most_three_times_their_own_tokens(store, engine, add):
    """The issue's measure: w=20, three times the own tokens plus one window per conversation."""
    header = "These are your notes from earlier conversations with the user, oldest first:\n"
    conversations = 5
    for c in range(conversations):
        texts = [f"Turn {i} of talk {c}: we spoke about a plan for the summer" for i in range(100)]
        add(0, conversation=f"c{c}", texts=texts)
    planner = Planner(
        engine.tokenizer,
        frame=Frame(header=header, footer=DEFAULT_FRAME.footer),
        store_secret=store.secret,
    )
    done = Encoder(store, engine, planner, PrecedingTurns(20)).drain()
    assert done.encoded == 500
    one_window = 20 * done.own_tokens / 500
    assert done.prompt_tokens <= 3 * done.own_tokens + conversations * one_window
    assert done.overhead < 2.2


def test_the_preamble_is_captured_once_per_partition(add, engine, make_encoder):
    add(8, ALICE)
    add(4, BOB)
    encoder = make_encoder()
    encoder.drain()
    assert [plan.captures_preamble for plan in engine.encodes] == [True, False, True]


def test_updated_facts_and_their_dependants_are_encoded_again(store, add, engine, make_encoder):
    facts = add(10)
    encoder = make_encoder(PrecedingTurns(2, 2))
    encoder.drain()
    old = records(store, encoder, facts)
    engine.encodes.clear()
    store.update(facts[4].id, ALICE, text="something else entirely")
    encoder.drain()
    behind = {i for i, r in old.items() if facts[4].id in r.context_fact_ids}
    assert set(captured(engine)) == {facts[4].id, *behind}
    assert set(engine.forgotten) == {old[i].key for i in {facts[4].id, *behind}}
    new = records(store, encoder, facts)
    assert len(new) == 10
    assert all(r.key in engine.segments for r in new.values())


def test_a_deleted_fact_leaves_every_window(store, add, engine, make_encoder):
    facts = add(8)
    encoder = make_encoder(PrecedingTurns(3, 3))
    encoder.drain()
    gone = records(store, encoder, facts)[facts[2].id].key
    store.delete(facts[2].id, ALICE)
    encoder.drain()
    assert gone not in engine.segments
    left = records(store, encoder, facts)
    assert set(left) == {f.id for f in facts} - {facts[2].id}
    assert all(facts[2].id not in r.context_fact_ids for r in left.values())
    assert {r.key for r in left.values()} <= set(engine.segments)


def test_forgets_go_before_encodes(store, add, engine, make_encoder):
    """Otherwise text that was deleted and added again would lose its new KV to the old deletion."""
    facts = add(1)
    encoder = make_encoder()
    encoder.drain()
    store.delete(facts[0].id, ALICE)
    again = add(1)
    encoder.drain()
    assert records(store, encoder, again)[again[0].id].key in engine.segments


def test_lost_keys_are_encoded_again(store, add, engine, make_encoder):
    facts = add(6)
    encoder = make_encoder()
    encoder.drain()
    keys = [r.key for r in records(store, encoder, facts).values()]
    engine.lose()
    assert store.drop_encodings(keys[:2]) == 2
    encoder.drain()
    assert len(engine.segments) >= 2
    assert len(records(store, encoder, facts)) == 6


def test_a_window_that_changes_while_the_engine_works_is_taken_back(
    store, add, engine, make_encoder
):
    facts = add(4)
    encoder = make_encoder(PrecedingTurns(4, 1))
    encode, state = engine.encode, {"done": False}

    def change_meanwhile(plan):
        if facts[2].id in plan.fact_ids and not state["done"]:
            state["done"] = True
            store.update(facts[0].id, ALICE, text="changed while it stood in a window")
        return encode(plan)

    engine.encode = change_meanwhile
    encoder.run_once()
    stale = [p for p in engine.encodes if facts[2].id in p.fact_ids]
    assert facts[2].id not in records(store, encoder, facts)
    encoder.drain()
    fresh = [p for p in engine.encodes if facts[2].id in p.fact_ids]
    assert len(fresh) == len(stale) + 1
    assert "changed while" in engine.prompt_text(fresh[-1])
    kept = records(store, encoder, facts)[facts[2].id].key
    assert kept in {c.key for c in fresh[-1].op.captures}
    assert not store.forget_queue() or kept not in store.forget_queue()


@pytest.mark.parametrize("fault", ["unavailable", "timeout"])
def test_an_absent_engine_loses_nothing(store, add, engine, make_encoder, fault):
    facts = add(3)
    encoder = make_encoder()
    setattr(engine.faults, fault, True)
    error = {"unavailable": EngineUnavailable, "timeout": EngineTimeout}[fault]
    with pytest.raises(error):
        encoder.run_once()
    assert len(store.pending(encoder._planner.profile("fake-model", "preceding-4"))) == 3
    setattr(engine.faults, fault, False)
    while not encoder.is_done():
        encoder.run_once()
    assert len(records(store, encoder, facts)) == 3


def test_a_refused_fact_is_left_alone_for_a_while_then_for_good(add, engine, make_encoder):
    add(2)
    engine.faults.refuse_encode = Reason.STORE_FAILED
    encoder = make_encoder(retry=RetryPolicy(0.5, 0.5, max_attempts=3))
    done = encoder.run_once()
    assert (done.encoded, done.failed, done.pending) == (0, 2, 2)
    assert encoder.run_once().requests == 0, "no hot loop"
    assert encoder.next_retry_in() is not None
    assert not encoder.is_done()
    while encoder.next_retry_in() is not None:
        encoder.run_once()
    assert sorted(Counter(captured(engine)).values()) == [3, 3], "max_attempts"
    assert len(engine.encodes[1].fact_ids) == 2, "still one request"
    assert encoder.is_done(), "given up: it stays text"


def test_a_refused_fact_is_encoded_when_the_engine_recovers(store, add, engine, make_encoder):
    facts = add(2)
    encoder = make_encoder()
    engine.faults.encode_error = EngineError("out of order")
    assert encoder.run_once().failed == 2
    engine.faults.encode_error = None
    while not encoder.is_done():
        encoder.run_once()
    assert len(records(store, encoder, facts)) == 2


def test_one_bad_fact_is_told_apart(store, add, engine, make_encoder):
    facts = add(4)
    bad = facts[1].id
    encode = engine.encode

    def refuse(plan):
        if bad in plan.fact_ids:
            raise EngineError("this one ends the request")
        return encode(plan)

    engine.encode = refuse
    encoder = make_encoder(retry=RetryPolicy(0.02, 0.2, max_attempts=6))
    while not encoder.is_done():
        encoder.run_once()
    assert set(records(store, encoder, facts)) == {f.id for f in facts} - {bad}


def test_failing_facts_do_not_hold_up_others(store, add, engine, make_encoder):
    add(5, ALICE, conversation="a")
    encoder = make_encoder(retry=RetryPolicy(60.0, 60.0))
    engine.faults.refuse_encode = Reason.STORE_FAILED
    encoder.run_once()
    engine.faults.refuse_encode = None
    others = add(3, ALICE, conversation="z")
    assert encoder.run_once(3).encoded == 3
    assert len(records(store, encoder, others)) == 3


def test_a_fact_longer_than_the_context_stays_text(store, add, caplog, make_encoder):
    engine = FakeEngine(max_model_len=400)
    facts = add(0, texts=["short one", "y" * 500, "short two"])
    encoder = make_encoder(engine=engine)
    done = encoder.drain()
    assert (done.encoded, done.unencodable, done.pending) == (2, 1, 1)
    assert encoder.is_done()
    assert set(records(store, encoder, facts)) == {facts[0].id, facts[2].id}
    assert "stays prompt text" in caplog.text
    assert "yyyy" not in caplog.text, "no fact text in the log"


def test_a_shorter_version_of_an_unencodable_fact_is_encoded(store, add, make_encoder):
    engine = FakeEngine(max_model_len=400)
    facts = add(0, texts=["y" * 500])
    encoder = make_encoder(engine=engine)
    encoder.drain()
    store.update(facts[0].id, ALICE, text="short now")
    assert encoder.drain().encoded == 1


def test_an_engine_that_cannot_inject_is_left_alone(store, add, make_encoder):
    engine = FakeEngine(can_inject=False)
    facts = add(2)
    encoder = make_encoder(engine=engine)
    done = encoder.drain()
    assert done.requests == 0
    assert "can_inject" in done.reason
    assert engine.encodes == []
    assert not encoder.is_done()
    store.delete(facts[0].id, ALICE)
    encoder.drain()
    assert engine.forgotten == []


def test_forgets_of_another_server_stay_queued(store, add, make_encoder):
    facts = add(2)
    make_encoder().drain()
    store.delete(facts[0].id, ALICE)
    queued = store.forget_queue()
    assert queued
    make_encoder(engine=FakeEngine(can_inject=False)).run_once()
    assert store.forget_queue() == queued


def test_another_model_means_another_profile(store, add, engine, make_encoder):
    facts = add(3)
    make_encoder().drain()
    other = FakeEngine(fingerprint="other-model")
    encoder = make_encoder(engine=other)
    encoder.drain()
    assert captured(other) == [f.id for f in facts]
    assert set(engine.segments).isdisjoint(other.segments)


def test_a_model_swapped_behind_the_address_is_noticed(store, add, engine, make_encoder):
    add(3)
    encoder = make_encoder()
    encoder.profile()
    info = engine.info()
    engine.become("swapped")
    # A client that has cached the old identity until it is told to ask again.
    engine.info = lambda *, refresh=False: (
        FakeEngine.info(engine) if refresh or engine.encodes else info
    )
    encoder.run_once()
    while not encoder.is_done():
        encoder.run_once()
    assert encoder.profile().startswith("swapped")


def test_two_encoders_on_one_store_do_the_work_once(tmp_path, store, add, engine, make_encoder):
    add(20)
    reopened = SQLiteFactStore(tmp_path / "facts.db")
    planner = Planner(engine.tokenizer, store_secret=reopened.secret)
    other = Encoder(reopened, engine, planner, PrecedingTurns(4, 4))
    ours = make_encoder()
    encode = engine.encode

    def race(plan):
        engine.encode = encode
        other.drain()
        return encode(plan)

    engine.encode = race
    ours.run_once()
    assert len(engine.encodes) == 6, "five batches, one of them by both"
    assert ours.is_done()
    reopened.close()


def test_kv_that_cannot_be_dropped_now_does_not_hold_up_encoding(
    store, add, engine, make_encoder, monkeypatch, caplog
):
    (gone,) = add(1)
    encoder = make_encoder()
    encoder.drain()
    store.delete(gone.id, ALICE)
    queued = store.forget_queue()

    def refuse(keys):
        raise EngineError("1 of 1 segments could not be removed from every tier")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "forget", refuse)
        (new,) = add(1, texts=["Something new"])
        assert encoder.run_once().encoded == 1
        assert store.forget_queue() == queued
        assert "could not be removed" in caplog.text
    encoder.run_once()
    assert store.forget_queue() == []
    assert new.id in records(store, encoder, [new])
