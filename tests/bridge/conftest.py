"""Memory on a fake server: everything but the model is real."""

from __future__ import annotations

import pytest

from inferscale_sdk.bridge import ChatBridge
from inferscale_sdk.memory import Memory

FACTS = ["Ann lives in Lisbon", "Ann's dog is called Pepper", "Ann is allergic to peanuts"]


@pytest.fixture
def memory(make_memory) -> Memory:
    """Facts of Ann and one of Bob, encoded."""
    memory = make_memory()
    for fact in FACTS:
        memory.add(fact, user_id="ann", run_id="r1")
    memory.add("Bob's code is 4711", user_id="bob")
    assert memory.wait_encoded(10)
    return memory


@pytest.fixture
def bridge(memory) -> ChatBridge:
    return ChatBridge(memory)
