from __future__ import annotations

import asyncio
import inspect
import threading
import time

import pytest

from inferscale_sdk.errors import EngineError, NamespaceError
from inferscale_sdk.memory import AsyncMemory, Memory
from inferscale_sdk.types import InjectionStatus


@pytest.fixture
async def amemory(make):
    memory = AsyncMemory.wrap(make(background=True))
    yield memory
    await memory.close()


def verbs(cls):
    return {
        name: member
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and callable(member)
    }


def test_both_classes_have_the_same_verbs():
    sync, twin = verbs(Memory), verbs(AsyncMemory)
    assert set(twin) - {"wrap", "unwrap"} == set(sync)
    for name, verb in sync.items():
        ours, theirs = inspect.signature(verb), inspect.signature(twin[name])
        assert ours == theirs, name
        assert inspect.getdoc(twin[name]) == inspect.getdoc(verb), name
        streams = name in ("stream", "complete_stream")
        check = inspect.isasyncgenfunction if streams else inspect.iscoroutinefunction
        assert check(twin[name]) or check(inspect.unwrap(twin[name])), name


def test_both_classes_have_the_same_properties():
    def properties(cls):
        return {n for n, m in inspect.getmembers(cls) if isinstance(m, property)}

    assert properties(Memory) == properties(AsyncMemory) == {"engine", "store"}


async def test_the_verbs(amemory, life):
    facts = await amemory.add(life, user_id="alice")
    assert await amemory.count(user_id="alice") == len(life)
    assert (await amemory.search("dog", user_id="alice", top_k=1))[0].fact == facts[1]
    assert await amemory.get(facts[0].id, user_id="alice") == facts[0]
    assert await amemory.get_all(user_id="alice") == facts
    handles = await amemory.handles("dog", user_id="alice")
    assert await amemory.resolve(handles, user_id="alice")
    await amemory.update(facts[0].id, text="I live in Porto", user_id="alice")
    await amemory.delete(facts[2].id, user_id="alice")
    assert len(await amemory.history(facts[0].id, user_id="alice")) == 2
    assert await amemory.flush(10.0)
    assert (await amemory.stats()).pending == 0
    assert await amemory.delete_all(user_id="alice") == len(life) - 1
    assert await amemory.reset(confirm=True) >= len(life)
    with pytest.raises(NamespaceError):
        await amemory.add("x")


async def test_answers(amemory, engine, life):
    await amemory.add(life, user_id="alice")
    assert await amemory.wait_encoded(10.0, user_id="alice")
    engine._answer = lambda plan, text: "it is Pepper"
    answer = await amemory.answer("my dog?", user_id="alice", top_k=3)
    assert answer.text == "it is Pepper"
    assert answer.report.status is InjectionStatus.INJECTED
    assert answer.facts[0].fact.text == life[1]
    chunks = [chunk async for chunk in amemory.stream("my dog?", user_id="alice")]
    assert "".join(c.text for c in chunks) == "it is Pepper"
    assert chunks[-1].completion.report.fact_ids
    plan = await amemory.prepare("my dog?", user_id="alice")
    assert (await amemory.complete(plan)).text == "it is Pepper"
    assert [c async for c in amemory.complete_stream(plan)][-1].completion is not None
    await amemory.observe(answer.report)
    assert (await amemory.refresh(plan)) == plan


async def test_failing_injection_means_text(amemory, engine, life):
    await amemory.add(life, user_id="alice")
    await amemory.wait_encoded(10.0)
    engine.faults.inject_error = EngineError("broke")
    answer = await amemory.answer("my dog?", user_id="alice")
    assert answer.report.status is InjectionStatus.TEXT
    assert "injection failed" in answer.report.reason
    chunks = [chunk async for chunk in amemory.stream("my dog?", user_id="alice")]
    assert "injection failed" in chunks[-1].completion.report.reason


async def test_what_was_deleted_is_not_served(amemory, engine, life):
    facts = await amemory.add(life, user_id="alice")
    plan = await amemory.prepare("my dog?", user_id="alice")
    await amemory.delete(facts[1].id, user_id="alice")
    await amemory.complete(plan)
    async for _ in amemory.complete_stream(plan):
        pass
    assert all("Pepper" not in engine.prompt_text(p) for p in engine.prompts)


async def test_a_cancelled_answer_stops_the_engine(amemory, engine, life):
    await amemory.add(life, user_id="alice")
    await amemory.wait_encoded(10.0)
    engine.faults.delay_s = 30.0
    task = asyncio.create_task(amemory.answer("my dog?", user_id="alice"))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == 1
    engine.faults.delay_s = 0.0
    assert (await amemory.answer("my dog?", user_id="alice")).text == "ok"


async def test_a_stream_left_early_stops_the_engine(amemory, engine, life):
    engine._answer = lambda plan, text: "a b c d"
    stream = amemory.stream("my dog?", user_id="alice")
    assert (await anext(stream)).text == "a "
    await stream.aclose()
    assert engine.cancelled == 1


async def test_a_cancelled_wait_leaves_no_thread_behind(amemory, engine):
    engine.faults.unavailable = True
    await amemory.add("x", user_id="alice")
    task = asyncio.create_task(amemory.wait_encoded())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.faults.unavailable = False


async def test_the_loop_is_not_blocked(amemory, engine, life, monkeypatch):
    await amemory.add(life, user_id="alice")
    search = amemory._memory._parts.recaller.search

    def slow(query):
        time.sleep(0.3)
        return search(query)

    monkeypatch.setattr(amemory._memory._parts.recaller, "search", slow)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await amemory.answer("my dog?", user_id="alice")
    ticker.cancel()
    assert ticks > 5


async def test_many_at_once(amemory, life):
    async def live(i):
        user = f"user{i}"
        await amemory.add([f"{text} {user}" for text in life], user_id=user)
        answer = await amemory.answer("my dog?", user_id=user)
        assert all(s.fact.namespace.user_id == user for s in answer.facts)

    await asyncio.gather(*(live(i) for i in range(20)))
    assert await amemory.wait_encoded(20.0)


async def test_as_a_context(make, engine, tmp_path, life):
    from inferscale_sdk.testing.fake_embedder import FakeEmbedder

    before = set(threading.enumerate())
    async with AsyncMemory(engine, path=tmp_path / "m", embedder=FakeEmbedder()) as memory:
        await memory.add(life, user_id="alice")
        assert await memory.wait_encoded(10.0)
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("inferscale")]
    assert left == []


async def test_waiting_in_vain_ends(make):
    memory = AsyncMemory.wrap(make(engine=None))
    assert not await memory.wait_encoded()
    assert not await memory.flush()


async def test_encoding_without_a_thread(make, life):
    memory = AsyncMemory.wrap(make(background=False))
    await memory.add(life, user_id="alice")
    assert await memory.wait_encoded(10.0)
