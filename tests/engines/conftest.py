"""A client of a fake server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[..., VLLMEngine]]:
    """Connects to a fake server; closes what it opened."""
    opened: list[VLLMEngine] = []

    def make(server: FakeServer, **options: Any) -> VLLMEngine:
        options = {"tokenizer": FakeTokenizer(), "timeout_seconds": 5.0, **options}
        opened.append(VLLMEngine(server.base_url, **options))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture
def client(server: FakeServer, connect: Callable[..., VLLMEngine]) -> VLLMEngine:
    return connect(server)
