"""How the vLLM client fails, and what it tries again."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import pytest

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.errors import (
    EngineError,
    EngineTimeout,
    EngineUnavailable,
)
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.plans import KEYS
from inferscale_sdk.testing.plans import sample_encode_plan as encode_plan
from inferscale_sdk.testing.plans import sample_prompt_plan as prompt_plan

Connect = Callable[..., VLLMEngine]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_nothing_listens(server: FakeServer) -> None:
    client = VLLMEngine(f"http://127.0.0.1:{_closed_port()}", retries=0)
    with pytest.raises(EngineUnavailable, match="inferscale serve"):
        client.info()
    with pytest.raises(EngineUnavailable):
        await client.agenerate(prompt_plan())
    await client.aclose()


def test_what_could_not_be_removed_is_an_error(server: FakeServer, connect: Connect) -> None:
    """So that whoever asked keeps the keys, and asks again."""
    client = connect(server)
    client.encode(encode_plan())
    server.connector.keep_segments = True
    with pytest.raises(EngineError, match=r"2 of 2 segments could not be removed"):
        client.forget(KEYS[:2])
    server.connector.keep_segments = False
    assert client.forget(KEYS[:2]) == 2


def test_connecting_is_tried_again() -> None:
    """A server that comes up a moment late is found."""
    port = _closed_port()
    client = VLLMEngine(f"http://127.0.0.1:{port}", retries=6)
    may_end = threading.Event()

    def come_up_late() -> None:
        time.sleep(0.15)
        with FakeServer(port=port):
            may_end.wait(20)

    thread = threading.Thread(target=come_up_late)
    thread.start()
    try:
        assert client.info().model == "fake"
    finally:
        client.close()
        may_end.set()
        thread.join()


async def test_silence_is_a_timeout(server: FakeServer, connect: Connect) -> None:
    client = connect(server, timeout_seconds=0.2)
    client.info()
    server.faults.delay_s = 1.0
    with pytest.raises(EngineTimeout, match=r"0\.2 s.*timeout_seconds"):
        client.generate(prompt_plan())
    with pytest.raises(EngineTimeout):
        list(client.stream(prompt_plan()))
    with pytest.raises(EngineTimeout):
        await client.agenerate(prompt_plan())
    await client.aclose()


def test_errors_carry_the_servers_words(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    for status, kind in ((400, EngineError), (500, EngineError), (503, EngineUnavailable)):
        server.faults.status = status
        with pytest.raises(kind, match=f"{status}: told to fail") as caught:
            client.generate(prompt_plan())
        assert type(caught.value) is kind
        with pytest.raises(kind, match="told to fail"):
            list(client.stream(prompt_plan()))


def test_generation_is_never_asked_for_twice(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    server.faults.hang_up = 1
    with pytest.raises(EngineUnavailable, match="lost"):
        client.generate(prompt_plan())
    assert server.bodies(CHAT) == []


def test_encoding_and_control_are_repeated(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    server.faults.hang_up = 2
    assert client.encode(encode_plan()).stored == KEYS
    server.faults.hang_up = 2
    assert client.forget(KEYS) == 2
    server.faults.hang_up = 3
    with pytest.raises(EngineUnavailable):
        client.stats()
    server.faults.hang_up = 0


@pytest.mark.parametrize("fault", ["break_stream_after", "error_in_stream_after"])
async def test_a_stream_that_breaks(server: FakeServer, client: VLLMEngine, fault: str) -> None:
    setattr(server.faults, fault, 2)
    said = []
    with pytest.raises(EngineError):
        for chunk in client.stream(prompt_plan()):
            said.append(chunk.text)
    assert said == ["one", " two"]
    with pytest.raises(EngineError):
        async for chunk in client.astream(prompt_plan()):
            said.append(chunk.text)
    assert said == ["one", " two"] * 2
    assert len(server.bodies(CHAT)) == 2
    await client.aclose()


def test_after_a_loss_it_asks_again_who_is_there(server: FakeServer, client: VLLMEngine) -> None:
    first = client.info()
    server.connector.fingerprint = "another-model"
    server.faults.hang_up = 1
    with pytest.raises(EngineUnavailable):
        client.generate(prompt_plan())
    assert client.info() is not first
    assert client.info().fingerprint == "another-model"


def test_one_engine_in_several_event_loops(server: FakeServer, client: VLLMEngine) -> None:
    """Connections of one loop are of no use in the next."""

    async def ask() -> str:
        return (await client.agenerate(prompt_plan())).text

    for _ in range(3):
        assert asyncio.run(ask()) == "one two three"
    assert not client._http._async  # closed with their loops
