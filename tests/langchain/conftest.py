"""LangChain objects on a fake server (units) and on the real one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from langchain.agents.middleware import AgentMiddleware, ModelResponse
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import LLMResult

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer
from langchain_inferscale import ChatInferScale

FACTS = {
    "ann": [
        "I live in Lisbon with my sister Ines",
        "My dog is called Pepper and hates rain",
        "I am allergic to peanuts",
        "On Mondays I play chess at the club",
    ],
    "bob": ["My locker code is 4711", "I live in Oslo"],
}


@pytest.fixture(autouse=True)
def no_openai_settings(monkeypatch):
    """Keys of another service, which must never be used."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-service")
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/another-service")


@pytest.fixture(autouse=True)
async def closed_clients(monkeypatch) -> AsyncIterator[None]:
    """The async clients that openai and LangChain leave open, closed in the loop they belong to."""
    from langchain_openai.chat_models import _client_utils

    made: list[httpx.AsyncClient] = []
    make = httpx.AsyncClient.__init__

    def remember(self: httpx.AsyncClient, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if type(self) is not httpx.AsyncClient:
            made.append(self)

    monkeypatch.setattr(httpx.AsyncClient, "__init__", remember)
    _client_utils._cached_async_httpx_client.cache_clear()
    yield
    for client in made:
        await client.aclose()
    _client_utils._cached_async_httpx_client.cache_clear()


# -- fake --------------------------------------------------------------------------------------


@pytest.fixture
def memory(make_memory) -> Memory:
    """Facts of Ann and Bob, encoded on the fake server."""
    memory = make_memory()
    fill(memory)
    assert memory.wait_encoded(10)
    return memory


def fill(memory: Memory) -> None:
    for user, facts in FACTS.items():
        for fact in facts:
            memory.add(fact, user_id=user)


@pytest.fixture
def marker(memory: Memory) -> Callable[..., str]:
    """The marker of the fact that holds a word."""

    def of(word: str, user_id: str = "ann") -> str:
        return find_marker(memory, word, user_id)

    return of


def find_marker(memory: Memory, word: str, user_id: str) -> str:
    facts = [f for f in memory.get_all(user_id=user_id) if word in f.text]
    return memory.mint(facts)[0].marker


@pytest.fixture
def prompts(server: FakeServer) -> Callable[[], list[str]]:
    """The texts of all prompts the fake server was given, controls left out."""

    def read() -> list[str]:
        bodies = [*server.bodies("/v1/chat/completions"), *server.bodies("/v1/completions")]
        operations = [(b.get("kv_transfer_params") or {}).get("inferscale") or {} for b in bodies]
        return [
            prompt_of(body, FakeTokenizer())
            for body, operation in zip(bodies, operations, strict=True)
            if operation.get("op") in (None, "inject")
        ]

    return read


def prompt_of(body: dict[str, Any], tokenizer: Any) -> str:
    ids = (body.get("kv_transfer_params") or {}).get("prompt_token_ids") or body.get("prompt")
    if ids is None:
        return json.dumps(body["messages"])
    return ids if isinstance(ids, str) else tokenizer.decode(ids)


# -- real --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def real_memory(engine, tmp_path_factory) -> Iterator[Memory]:
    """Facts of Ann and Bob on the real server, encoded."""
    with Memory(engine, live_facts=0, path=tmp_path_factory.mktemp("langchain-memory")) as memory:
        fill(memory)
        assert memory.wait_encoded(120)
        yield memory


@dataclass
class Wire:
    """What went over the wire to the real server, and clients that record it."""

    engine: VLLMEngine
    bodies: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def prompts(self) -> list[str]:
        """The exact texts the model was given."""
        return [prompt_of(body, self.engine.tokenizer) for body in self.bodies]

    def clear(self) -> None:
        self.bodies.clear()
        self.reports.clear()

    def with_memory(self) -> list[dict[str, Any]]:
        """The reports of requests that carried facts."""
        return [report for report in self.reports if report["fact_ids"]]

    def record(self, request: httpx.Request) -> None:
        self.bodies.append(json.loads(request.content))

    async def arecord(self, request: httpx.Request) -> None:
        self.record(request)


class _Reports(BaseCallbackHandler):
    """Collects the report of every model call, however deep in a chain."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for generations in response.generations:
            for generation in generations:
                message = getattr(generation, "message", None)
                info = message.response_metadata if message else generation.generation_info
                if info and "inferscale" in info:
                    self._wire.reports.append(info["inferscale"])


@pytest.fixture
def wire(engine) -> Wire:
    return Wire(engine)


@pytest.fixture
async def make_chat(real_memory, wire):
    """Makes chat models on the real server whose requests and reports are recorded."""
    sync = httpx.Client(event_hooks={"request": [wire.record]})
    async_ = httpx.AsyncClient(event_hooks={"request": [wire.arecord]})

    def make(kind: Any = ChatInferScale, **options: Any) -> Any:
        settings = {"temperature": 0, "max_tokens": 24} | options
        return kind(
            memory=real_memory,
            http_client=sync,
            http_async_client=async_,
            callbacks=[_Reports(wire)],
            **settings,
        )

    yield make
    sync.close()
    await async_.aclose()


class Script(AgentMiddleware):
    """Calls a tool on the first model call of a turn, as a bigger model would by itself."""

    def __init__(self, name: str, **args: Any) -> None:
        super().__init__()
        self._call = {"name": name, "args": args, "id": "call-1"}

    def _answer(self, request: Any) -> ModelResponse | None:
        if isinstance(request.messages[-1], ToolMessage):
            return None
        return ModelResponse(result=[AIMessage("", tool_calls=[self._call])])

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._answer(request) or handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._answer(request) or await handler(request)


@pytest.fixture
def script() -> type[Script]:
    return Script
