"""Users whose facts are encoded on the real server, and what recalls them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory
from llama_index.retrievers.inferscale import InferScaleRetriever

sys.path.insert(0, str(Path(__file__).parent))

from paths_scene import FACTS, Seen

from inferscale_sdk import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

_numbers = itertools.count()


@pytest.fixture(scope="module")
def memory(engine, tmp_path_factory) -> Iterator[Memory]:
    folder = tmp_path_factory.mktemp("llama-index")
    with Memory(engine, live_facts=0, path=folder / "memory", embedder=FakeEmbedder()) as memory:
        yield memory


@pytest.fixture
def user_id(memory) -> str:
    """A user whose facts are encoded."""
    user_id = f"nora-{next(_numbers)}"
    for part, facts in FACTS.items():
        for fact in facts:
            memory.add(
                {"role": "user", "content": fact},
                user_id=user_id,
                run_id="earlier",
                metadata={"part": part},
            )
    assert memory.wait_encoded(120, user_id=user_id)
    return user_id


@pytest.fixture
def seen(engine, user_id) -> Seen:
    return Seen(engine)


@pytest.fixture
async def llm(memory, user_id, seen):
    llm = InferScaleLLM(
        memory,
        user_id=user_id,
        max_tokens=16,
        temperature=0.0,
        max_retries=0,
        on_report=seen.reports.append,
    )
    yield llm
    await llm.aclose()


@pytest.fixture
def retriever(memory, user_id, seen) -> InferScaleRetriever:
    return seen.follow(InferScaleRetriever(memory, user_id=user_id, top_k=3))


@pytest.fixture
def make_chat_memory(memory, user_id, seen):
    """Memories of sessions that are not remembered, so that recall finds the facts above."""

    def make(**options) -> InferScaleMemory:
        settings = {"top_k": 2, "remember_roles": ()} | options
        return seen.follow(InferScaleMemory(memory, user_id=user_id, **settings))

    return make
