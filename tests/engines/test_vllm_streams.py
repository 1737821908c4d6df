"""Streams of the vLLM client: text as it comes, reports, leaving early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

import pytest

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.plans import KEYS
from inferscale_sdk.testing.plans import sample_encode_plan as encode_plan
from inferscale_sdk.testing.plans import sample_prompt_plan as prompt_plan
from inferscale_sdk.types import InjectionStatus

Connect = Callable[..., VLLMEngine]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def test_stream(server: FakeServer, client: VLLMEngine) -> None:
    client.encode(encode_plan())
    chunks = list(client.stream(prompt_plan()))
    assert [chunk.text for chunk in chunks] == ["one", " two", " three", ""]
    completion = chunks[-1].completion
    assert completion is not None
    assert completion.text == "one two three"
    assert completion.report.status is InjectionStatus.INJECTED
    assert completion.report.injected_tokens == 11
    # The counts on the stream told it all.
    assert server.operations("stats") == []


async def test_astream(server: FakeServer, client: VLLMEngine) -> None:
    await client.aencode(encode_plan())
    chunks = [chunk async for chunk in client.astream(prompt_plan())]
    assert [chunk.text for chunk in chunks] == ["one", " two", " three", ""]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.report.status is InjectionStatus.INJECTED
    await client.aclose()


def test_streams_fetch_the_report_when_counts_fall_short(
    server: FakeServer, client: VLLMEngine
) -> None:
    report = _streamed(client)
    assert report.status is InjectionStatus.TEXT
    assert report.missing_keys == KEYS
    assert len(server.operations("stats")) == 1
    server.faults.hide_cached = True
    client.encode(encode_plan())
    assert _streamed(client).injected_tokens == 11
    assert len(server.operations("stats")) == 2


def test_exact_reports_are_always_fetched(server: FakeServer, connect: Connect) -> None:
    client = connect(server, exact_reports=True)
    client.encode(encode_plan())
    assert _streamed(client).injected_tokens == 11
    assert len(server.operations("stats")) == 1


def test_a_lost_report_does_not_spoil_the_answer(server: FakeServer, client: VLLMEngine) -> None:
    server.connector.lose_reports = True
    report = _streamed(client)
    assert report.status is InjectionStatus.TEXT
    assert "no report" in report.reason


def test_a_refused_stream_says_why(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    plan = prompt_plan(cache_salt="ifs1:who:wrong")
    report = list(client.stream(plan))[-1].completion.report  # type: ignore[union-attr]
    assert report.status is InjectionStatus.TEXT
    assert report.reason


def _streamed(client: VLLMEngine) -> Any:
    completion = list(client.stream(prompt_plan()))[-1].completion
    assert completion is not None
    return completion.report


def test_time_to_first_token_is_the_clients(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    server.faults.delay_s = 0.1
    assert 90 < _streamed(client).ttft_ms < 600


def test_leaving_a_stream_early_closes_it(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    server.faults.delay_s = 0.02
    with closing(client.stream(prompt_plan())) as chunks:  # type: ignore[type-var]
        assert next(chunks).text == "one"
    _wait_for(lambda: server.cut_streams == 1)
    assert client.generate(prompt_plan()).text == "one two three"


async def test_leaving_an_async_stream_early_closes_it(
    server: FakeServer, client: VLLMEngine
) -> None:
    await asyncio.to_thread(client.info)
    server.faults.delay_s = 0.02
    async with aclosing(client.astream(prompt_plan())) as chunks:  # type: ignore[type-var]
        async for _ in chunks:
            break
    await asyncio.to_thread(_wait_for, lambda: server.cut_streams == 1)
    await client.aclose()


async def test_cancelling_a_call_leaves_the_engine_usable(
    server: FakeServer, client: VLLMEngine
) -> None:
    await client.agenerate(prompt_plan())
    server.faults.delay_s = 0.5
    task = asyncio.create_task(client.agenerate(prompt_plan()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.faults.delay_s = 0.0
    assert (await client.agenerate(prompt_plan())).text == "one two three"
    await client.aclose()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
