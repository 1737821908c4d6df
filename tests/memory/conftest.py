"""Memories without a model: fake engine and embedder, real store and index."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine

MakeMemory = Callable[..., Memory]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make(tmp_path, engine):
    """Makes memories on one folder; ``engine=None`` for one without."""
    made = []

    def make(**kwargs) -> Memory:
        options = {
            "engine": engine,
            "path": tmp_path / "memory",
            "embedder": FakeEmbedder(),
            "window": PrecedingTurns(4, 4),
            "live_facts": 0,
            "background": False,
        } | kwargs
        memory = Memory(**options)
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()


@pytest.fixture
def memory(make) -> Memory:
    return make()


LIFE = [
    "I live in Lisbon with my sister Ines",
    "My dog is called Pepper and hates rain",
    "I am allergic to peanuts",
    "On Mondays I play chess at the club",
    "I work as a nurse in the children's ward",
    "My favourite colour is green",
]


@pytest.fixture
def life():
    return LIFE


@pytest.fixture
def alice(memory, life) -> Memory:
    """A memory with an encoded life."""
    memory.add(life, user_id="alice")
    assert memory.wait_encoded(10.0)
    return memory


@pytest.fixture
def asked() -> Callable[[FakeEngine], str]:
    """The text of the last prompt that an engine was sent."""
    return lambda engine: engine.prompt_text(engine.prompts[-1])
