"""The adapters on a fake server: everything but the model is real."""

from __future__ import annotations

import os
import tempfile

# Before anything imports mem0.
os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = tempfile.mkdtemp(prefix="mem0-")

import pytest

pytest.importorskip("llama_index.core", reason="make setup installs llama-index-core")

from llama_index.core.memory import Memory as CoreMemory
from llama_index.llms.inferscale import InferScaleLLM

from inferscale_sdk.memory import Memory

FACTS = ["Ann lives in Lisbon", "Ann's dog is called Pepper", "Ann is allergic to peanuts"]


@pytest.fixture
def memory(make_memory) -> Memory:
    """Facts of Ann and one of Bob, encoded."""
    memory = make_memory()
    for fact in FACTS:
        memory.add(fact, user_id="ann", run_id="earlier")
    memory.add("Bob's code is 4711", user_id="bob")
    assert memory.wait_encoded(10)
    return memory


@pytest.fixture
async def make_llm(memory):
    """Makes models on the memory; their connections are closed in the test's event loop."""
    made = []

    def make(**options) -> InferScaleLLM:
        llm = InferScaleLLM(memory, **({"max_retries": 0} | options))
        made.append(llm)
        return llm

    yield make
    for llm in made:
        await llm.aclose()


@pytest.fixture
async def make_core_memory():
    """Makes LlamaIndex's own memory, and closes its database, which it does not do itself."""
    made = []

    def make(**options) -> CoreMemory:
        chat = CoreMemory.from_defaults(**options)
        made.append(chat)
        return chat

    yield make
    for chat in made:
        if chat.sql_store._async_engine is not None:
            await chat.sql_store._async_engine.dispose()
