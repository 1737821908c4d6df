"""Every engine passes the suite that comes with the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.testing.engine_suite import EngineSuite
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer


class TestVLLMEngineOnFakeServer(EngineSuite):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with FakeServer() as server:
            engine = VLLMEngine(server.base_url, tokenizer=FakeTokenizer())
            yield engine
            engine.close()


@pytest.mark.engine
class TestVLLMEngine(EngineSuite):
    """On the session's real server."""
