"""Threads: indexing and encoding while the application goes on, and many callers at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from inferscale_sdk.ingest.worker import WorkerState
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.types import InjectionStatus


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.01)


@pytest.fixture
def busy(make):
    return make(background=True)


def test_added_facts_are_indexed_and_encoded_meanwhile(make, life, engine):
    embedder = FakeEmbedder()
    memory = make(background=True, embedder=embedder)
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0, user_id="alice")
    until(lambda: embedder.calls == len(life))
    memory.search("dog", user_id="alice")
    assert embedder.calls == len(life), "the search had nothing left to embed"
    assert memory.answer("my dog?", user_id="alice").report.status is InjectionStatus.INJECTED
    stats = memory.stats()
    assert stats.pending == 0 and stats.encoding.encoded == len(life)
    assert stats.worker.state in (WorkerState.IDLE, WorkerState.ENCODING)


def test_a_search_sees_what_was_just_added(busy):
    for i in range(10):
        busy.add(f"number{i} is here", user_id="alice")
        assert busy.search(f"number{i}", user_id="alice", top_k=1)[0].fact.text.startswith(
            f"number{i} "
        )


def test_adding_does_not_wait_for_a_slow_engine(busy, engine):
    engine.faults.delay_s = 0.3
    busy.add("warm up", user_id="alice")
    until(lambda: busy.stats().worker.state is WorkerState.ENCODING)
    started = time.monotonic()
    for i in range(20):
        busy.add(f"fact {i}", user_id="alice")
    assert time.monotonic() - started < 2.0
    assert busy.stats().pending
    assert not busy.wait_encoded(0.01)
    engine.faults.delay_s = 0.0
    assert busy.wait_encoded(10.0)


def test_an_engine_that_comes_up_later(busy, engine, life):
    engine.faults.unavailable = True
    busy.add(life, user_id="alice")
    until(lambda: busy.stats().worker.state is WorkerState.BACKING_OFF)
    engine.faults.unavailable = False
    assert busy.answer("my dog?", user_id="alice").text == "ok"
    assert busy.wait_encoded(20.0)


def test_lost_segments_come_back_by_themselves(busy, engine, life):
    busy.add(life, user_id="alice")
    assert busy.wait_encoded(10.0)
    engine.lose()
    assert busy.answer("my dog?", user_id="alice").report.status is InjectionStatus.TEXT
    assert busy.wait_encoded(10.0)
    assert busy.answer("my dog?", user_id="alice").report.status is InjectionStatus.INJECTED


def test_deleted_kv_goes_at_once(busy, engine, life):
    facts = busy.add(life, user_id="alice")
    assert busy.wait_encoded(10.0)
    records = busy.store.encodings([f.id for f in facts], busy._parts.serving.encoder.profile())
    busy.delete(facts[1].id, user_id="alice")
    assert records[facts[1].id].key not in engine.segments


def test_an_embedder_that_fails_in_the_background_is_heard_of_in_the_search(make, caplog):
    class Broken(FakeEmbedder):
        def embed(self, texts):
            raise RuntimeError("no more memory")

    memory = make(background=True, embedder=Broken())
    memory.add("x", user_id="alice")
    until(lambda: "indexing failed" in caplog.text)
    with pytest.raises(RuntimeError):
        memory.search("x", user_id="alice")
    assert "recall failed" in memory.answer("x?", user_id="alice").report.reason


def test_closing_ends_every_thread(make, life):
    before = set(threading.enumerate())
    memory = make(background=True)
    memory.add(life, user_id="alice")
    memory.close()
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("inferscale")]
    assert left == []


def test_a_restart_goes_on_where_it_stopped(make, engine, life):
    engine.faults.delay_s = 0.05
    memory = make(background=True)
    memory.add([f"{text} {i}" for i in range(6) for text in life], user_id="alice")
    until(lambda: engine.encodes)
    memory.close()
    done = sum(len(p.fact_ids) for p in engine.encodes)
    assert 0 < done < 36
    engine.faults.delay_s = 0.0
    again = make(background=True)
    assert again.wait_encoded(10.0)
    assert sum(len(p.fact_ids) for p in engine.encodes) == 36, "nothing twice"


def test_twenty_threads(busy, engine, life):
    """Each user adds, searches, updates, deletes and asks; nobody sees anybody else's."""

    def live(i):
        user = f"user{i}"
        facts = busy.add([f"{text} says {user}" for text in life], user_id=user)
        found = busy.search("my dog Pepper", user_id=user, top_k=3)
        assert all(s.fact.text.endswith(user) for s in found)
        busy.update(facts[0].id, text=f"I moved to Porto says {user}", user_id=user)
        answer = busy.answer("Where do I live? my dog?", user_id=user)
        assert all(s.fact.namespace.user_id == user for s in answer.facts)
        busy.delete(facts[1].id, user_id=user)
        handles = busy.handles("chess", user_id=user, top_k=2)
        assert len(busy.resolve(handles, user_id=user)) == 2
        assert busy.resolve(handles, user_id=f"user{i + 1}") == []
        assert busy.answer("my dog?", user_id=user).text == "ok"
        return user

    with ThreadPoolExecutor(20) as pool:
        users = list(pool.map(live, range(20)))
    assert len(set(users)) == 20
    assert busy.wait_encoded(30.0)
    for plan in engine.prompts:
        text = engine.prompt_text(plan)
        assert (
            len({word for word in text.split() if word.startswith("user") and word[4:].isdigit()})
            <= 1
        )
    for user in users:
        assert busy.count(user_id=user) == len(life) - 1
        assert busy.answer("my dog?", user_id=user).report.status is InjectionStatus.INJECTED
