"""A server that tests may kill, and a memory of one person on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inferscale_sdk import Memory, VLLMEngine

PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Paris", "Quito", "Tokyo", "Delhi", "Perth", "Milan")
NAMES = ("Ann", "Bob", "Cid", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon")
FACTS = [
    f"My friend {name} moved to {place} and works there as a gardener."
    for name, place in zip(NAMES, PLACES, strict=True)
]
QUESTION = "Where did my friend Dee move to?"


@pytest.fixture(scope="session")
def doomed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where that server keeps KV (``kv``) and its log."""
    return tmp_path_factory.mktemp("doomed")


@pytest.fixture(scope="session")
def doomed(model_path: Path, doomed_folder: Path) -> Iterator[VLLMEngine]:
    """A server of its own for tests that end it; each leaves it running."""
    from inferscale_sdk import VLLMEngine

    engine = VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=doomed_folder / "kv",
        log_path=doomed_folder / "server.log",
        max_model_len=2048,
        timeout_seconds=30,
    )
    with engine:
        yield engine


@pytest.fixture
def remember(tmp_path: Path) -> Iterator[Callable[..., Memory]]:
    """Make a memory on an engine; closed at the end of the test."""
    from inferscale_sdk import Memory
    from inferscale_sdk.testing.fake_embedder import FakeEmbedder

    made: list[Memory] = []

    def make(engine: VLLMEngine, folder: str = "memory", **options: object) -> Memory:
        memory = Memory(
            engine,
            path=tmp_path / folder,
            embedder=FakeEmbedder(),
            background=False,
            live_facts=0,
            **options,
        )
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()
