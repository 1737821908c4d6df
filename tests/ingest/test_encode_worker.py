from __future__ import annotations

import threading
import time

import pytest

from inferscale_sdk.ingest.retry import RetryPolicy
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.ingest.worker import EncodeWorker, WorkerState
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import Namespace

ALICE, BOB = Namespace(user_id="alice"), Namespace(user_id="bob")
QUICK = RetryPolicy(base_seconds=0.01, max_seconds=0.05)


@pytest.fixture
def make_worker(make_encoder):
    made = []

    def make(*, engine=None, strategy=None, **kwargs):
        extra = {} if engine is None else {"engine": engine}
        options = {"retry": QUICK, "linger_seconds": 0.0, "poll_seconds": 0.1} | kwargs
        worker = EncodeWorker(make_encoder(strategy, **extra), **options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        assert worker.stop()


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.005)


def test_waiting_facts_are_encoded(add, engine, make_worker):
    add(10)
    worker = make_worker()
    worker.start()
    assert worker.wait(5.0)
    assert len(engine.segments) == 11, "ten facts and a preamble"
    until(lambda: worker.status.state is WorkerState.IDLE)


def test_facts_that_come_one_by_one_are_encoded_promptly_with_their_window(
    add, engine, make_worker
):
    worker = make_worker(strategy=PrecedingTurns(2, 4))
    worker.start()
    facts = []
    for _ in range(4):
        facts += add(1)
        worker.wake(ALICE)
        assert worker.wait(5.0)
    assert [plan.fact_ids for plan in engine.encodes] == [(f.id,) for f in facts]
    assert engine.encodes[-1].context_fact_ids == ((facts[1].id, facts[2].id),)


def test_a_burst_is_grouped(add, engine, make_worker):
    worker = make_worker(strategy=PrecedingTurns(4, 8), linger_seconds=0.2)
    worker.start()
    for _ in range(8):
        add(1)
        worker.wake(ALICE)
    assert worker.wait(5.0)
    assert len(engine.encodes) <= 2


def test_facts_added_by_another_process_are_found(add, engine, make_worker):
    worker = make_worker()
    worker.start()
    assert worker.wait(5.0)
    add(3)  # and nobody wakes the worker
    until(lambda: len(engine.segments) == 4)


def test_the_engine_may_be_down_at_first(add, engine, make_worker):
    engine.faults.unavailable = True
    add(3)
    worker = make_worker()
    worker.start()
    until(lambda: worker.status.state is WorkerState.BACKING_OFF)
    assert "EngineUnavailable" in worker.status.reason
    assert not worker.wait(0.05)
    engine.faults.unavailable = False
    assert worker.wait(5.0)


def test_an_outage_is_logged_once(add, engine, make_worker, caplog):
    engine.faults.unavailable = True
    add(1)
    worker = make_worker()
    worker.start()
    until(lambda: engine.info_calls > 6)
    assert worker.stop()
    warnings = [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    assert len(warnings) == 1


def test_wake_ups_do_not_hammer_an_absent_engine(add, engine, make_worker):
    engine.faults.unavailable = True
    worker = make_worker(retry=RetryPolicy(base_seconds=0.3, max_seconds=0.3))
    worker.start()
    until(lambda: worker.status.state is WorkerState.BACKING_OFF)
    calls = engine.info_calls
    for _ in range(20):
        add(1)
        worker.wake(ALICE)
    assert engine.info_calls <= calls + 1


@pytest.mark.parametrize("error", [RuntimeError("bug"), MemoryError(), KeyError("x")])
def test_nothing_ends_the_thread(add, engine, make_worker, error):
    add(2)
    encode = engine.encode
    engine.encode = lambda plan: (_ for _ in ()).throw(error)
    worker = make_worker()
    worker.start()
    until(lambda: worker.status.state is WorkerState.BACKING_OFF)
    engine.encode = encode
    assert worker.wait(5.0)


def test_an_engine_that_cannot_inject(add, make_worker):
    add(2)
    worker = make_worker(engine=FakeEngine(can_inject=False))
    worker.start()
    started = time.monotonic()
    assert not worker.wait(10.0), "waiting is in vain"
    assert time.monotonic() - started < 5.0
    assert worker.status.state is WorkerState.TEXT_ONLY
    assert "can_inject" in worker.status.reason


def test_a_chat_is_not_held_up_by_an_import(add, engine, make_worker):
    add(200, ALICE)
    engine.faults.delay_s = 0.01
    worker = make_worker(slice_facts=8)
    worker.start()
    until(lambda: engine.encodes)
    fresh = add(1, BOB)
    worker.wake(BOB)
    assert worker.wait(5.0, BOB)
    assert len(engine.encodes) < 40
    assert any(p.fact_ids == (fresh[0].id,) for p in engine.encodes)


def test_stop_finishes_the_request_in_flight(store, add, engine, make_worker):
    add(40)
    engine.faults.delay_s = 0.02
    worker = make_worker()
    worker.start()
    until(lambda: engine.encodes)
    assert worker.stop()
    assert worker.status.state is WorkerState.STOPPED
    recorded = 40 - store.count_pending(worker._encoder.profile())
    assert recorded == sum(len(p.fact_ids) for p in engine.encodes)
    assert not [t for t in threading.enumerate() if t.name == "inferscale-encoder"]


def test_progress_while_waiting(add, make_worker):
    add(10)
    worker = make_worker()
    worker.start()
    seen = []
    assert worker.wait(5.0, progress=seen.append)
    assert seen


def test_stop_without_start(make_worker):
    worker = make_worker()
    assert worker.stop()
    worker.start()
    assert worker.status.state is WorkerState.STOPPED, "a stopped worker stays stopped"
