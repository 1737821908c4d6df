"""The ledger against the engine."""

from __future__ import annotations

import threading

import pytest

from inferscale_sdk.errors import StoreError
from inferscale_sdk.facts.base import KeyState
from inferscale_sdk.ingest.orphans import OrphanCheck
from inferscale_sdk.memory import Memory
from inferscale_sdk.protocol import StatsAnswer
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def memory(tmp_path, engine):
    with Memory(engine, path=tmp_path, embedder=FakeEmbedder(), background=False) as memory:
        yield memory


def check(memory: Memory, grace: float = 0.0) -> OrphanCheck:
    serving = memory._parts.serving
    return OrphanCheck(memory.store, serving.engine, serving.encoder.profile, grace_seconds=grace)


def test_nothing_is_found_where_all_is_well(memory, engine):
    memory.add(["I like tea", "I live in Porto"], user_id="nora")
    assert memory.wait_encoded()
    before, forgotten = dict(engine.segments), list(engine.forgotten)
    report = check(memory).run()
    assert (report.checked, report.orphans, report.lost, report.complete) == (2, 0, 0, True)
    assert engine.segments == before and engine.forgotten == forgotten


def test_a_client_that_died_before_recording_leaves_an_orphan(memory, engine, monkeypatch):
    memory.add("I like tea", user_id="nora")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(memory.store, "record_encodings", die)
        memory.wait_encoded()
    [orphan, *_] = [k for k in engine.segments if k not in _preambles(engine)]
    # Another fact comes before it now, so that it is not encoded as it was.
    memory.delete_all(user_id="nora")
    assert check(memory, grace=60.0).run().orphans == 0
    assert check(memory).run().orphans == 1
    memory.flush()
    assert orphan in engine.forgotten and orphan not in engine.segments


def test_preambles_and_other_stores_segments_are_left_alone(memory, engine):
    memory.add("I like tea", user_id="nora")
    assert memory.wait_encoded()
    engine.segments["f" * 40] = "somebody else's"
    memory.delete_all(user_id="nora", hard=True)
    check(memory).run()
    memory.flush()
    assert engine.segments.keys() == {"f" * 40, *_preambles(engine)}


def test_lost_segments_are_encoded_again(memory, engine):
    memory.add(["I like tea", "I live in Porto"], user_id="nora")
    assert memory.wait_encoded()
    before = dict(engine.segments)
    [lost, *_] = memory.store.recorded_keys(memory.store.profiles()[0])
    engine.lose([lost])
    assert check(memory).run().lost == 1
    assert memory.stats().pending == 1
    assert memory.wait_encoded()
    # What was captured beside others is encoded again alone, behind more of them: another key.
    assert len(engine.segments) == len(before)
    assert memory.stats().pending == 0
    assert set(memory.store.recorded_keys(memory.store.profiles()[0])) <= set(engine.segments)


def test_what_an_engine_had_no_room_for_is_not_encoded_again(memory, engine, monkeypatch):
    memory.add(["I like tea", "I live in Porto"], user_id="nora")
    assert memory.wait_encoded()
    engine.lose()
    monkeypatch.setattr(engine, "stats", lambda *_: StatsAnswer(tiers={"host": {"evictions": 3}}))
    report = check(memory).run()
    assert (report.lost, report.evicted) == (0, 2)
    assert memory.stats().pending == 0


def test_it_stops_when_told_and_waits_for_an_engine_that_injects(memory, engine):
    memory.add(["I like tea"], user_id="nora")
    assert memory.wait_encoded()
    stop = threading.Event()
    stop.set()
    assert not check(memory).run(stop).complete
    engine._can_inject = False
    assert not check(memory).run().complete


def test_the_thread_checks_when_it_is_time(tmp_path, engine):
    with Memory(
        engine, path=tmp_path, embedder=FakeEmbedder(), orphan_check_seconds=0.05
    ) as memory:
        memory.add("I like tea", user_id="nora")
        assert memory.wait_encoded(10)
        engine.lose()
        memory.store.note_keys(["a" * 40])
        for _ in range(100):
            memory._parts.serving.worker.wake()
            if memory.store.count_pending(memory.store.profiles()[0]) == 0 and engine.segments:
                break
            threading.Event().wait(0.05)
        keys = memory.store.recorded_keys(memory.store.profiles()[0])
        assert keys and set(keys) <= engine.segments.keys()


def _preambles(engine: FakeEngine) -> set[str]:
    return {plan.op.captures[0].key for plan in engine.encodes if plan.captures_preamble}


def test_a_preamble_learnt_on_the_way_of_an_answer_is_known_as_ours(memory, engine):
    memory.add("I like tea", user_id="nora")
    assert memory.wait_encoded()
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Do I like tea?"},
    ]
    plan = memory.prepare(chat, user_id="nora")
    key = plan.segments[0].key
    assert plan.segments[0].kind == "preamble" and key not in engine.segments
    assert memory.store.key_states([key]) == {}
    memory.complete(plan)
    assert key in engine.segments
    assert memory.store.key_states([key]) == {key: KeyState.IN_USE}
    assert check(memory).run().orphans == 0


def test_a_preamble_that_cannot_be_noted_spoils_no_answer(memory, engine, monkeypatch, caplog):
    memory.add("I like tea", user_id="nora")
    assert memory.wait_encoded()

    def locked(*_args, **_kwargs):
        raise StoreError("locked")

    monkeypatch.setattr(memory.store, "note_keys", locked)
    assert memory.answer("Do I like tea?", user_id="nora").text
    assert "could not be noted: StoreError" in caplog.text
