"""The embedded engine behind a memory: told, encoded, recalled, injected, forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferscale_sdk import AsyncMemory, InjectionStatus, Memory, TransformersEngine
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

LIFE = ["I live in Oslo.", "My dog is called Rufus.", "I am a nurse."]
SHORT = Sampling(max_tokens=8)


@pytest.fixture
def engine(
    tiny_model: Callable[..., Path], embed: Callable[..., TransformersEngine], tmp_path: Path
) -> TransformersEngine:
    return embed(tiny_model(max_position_embeddings=4096), persist=True, disk_path=tmp_path / "kv")


def test_facts_are_encoded_and_injected(engine: TransformersEngine, tmp_path: Path) -> None:
    with Memory(engine, live_facts=0, path=tmp_path / "memory", embedder=FakeEmbedder()) as memory:
        memory.add(LIFE, user_id="alice")
        assert memory.wait_encoded(30.0)
        answer = memory.answer("Where do I live?", user_id="alice", sampling=SHORT)
        assert answer.report.status is InjectionStatus.INJECTED, answer.report
        assert answer.report.memory_tokens > 0
        assert answer.report.injected_tokens >= answer.report.memory_tokens

        fact = memory.get_all(user_id="alice")[0]
        memory.delete(fact.id, user_id="alice")
        assert engine.stats().counters["forgotten_segments"] >= 1
        assert memory.wait_encoded(30.0)
        again = memory.answer("Where do I live?", user_id="alice", sampling=SHORT)
        assert fact.id not in again.report.fact_ids


async def test_async_memory(engine: TransformersEngine, tmp_path: Path) -> None:
    async with AsyncMemory(
        engine, live_facts=0, path=tmp_path / "memory", embedder=FakeEmbedder()
    ) as memory:
        await memory.add(LIFE, user_id="alice")
        assert await memory.wait_encoded(30.0)
        answer = await memory.answer("Where do I live?", user_id="alice", sampling=SHORT)
        assert answer.report.status is InjectionStatus.INJECTED, answer.report
