"""What the model wrappers need before they exist: a memory, and where its server is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from inferscale_sdk import AsyncMemory, ConfigurationError, Memory, VLLMEngine
from inferscale_sdk.bridge import ChatBridge, shared_memory
from inferscale_sdk.config import settings

__all__ = ["bridge_of", "client_values", "memory_of"]

_NO_KEY = "EMPTY"
"""The client of openai insists on a key; a vLLM server without one ignores it."""


def memory_of(memory: Memory | AsyncMemory | None) -> Memory:
    """The memory that was given, or the process's own."""
    if memory is None:
        return shared_memory()
    return memory.unwrap() if isinstance(memory, AsyncMemory) else memory


def client_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments with address and key of *our* server.

    The base classes would read ``OPENAI_API_KEY`` and ``OPENAI_API_BASE`` otherwise, and send an
    OpenAI key, or the conversation, where it does not belong.

    Raises:
        ConfigurationError: No server is named, or two.
    """
    taken = dict(values)
    memory = taken.get("memory")
    engine = memory.engine if isinstance(memory, Memory | AsyncMemory) else None
    known = engine.base_url if isinstance(engine, VLLMEngine) else None
    given = taken.pop("openai_api_base", None) or taken.pop("base_url", None)
    url = given or known or settings().base_url
    if url is None:
        raise ConfigurationError(
            "no server is named; pass base_url='http://127.0.0.1:8000' or "
            "memory=Memory(VLLMEngine(…)), or set INFERSCALE_BASE_URL. "
            "'inferscale serve' starts a server"
        )
    if known and _root(url) != _root(known):
        raise ConfigurationError(
            f"base_url={url!r} is not where the memory's engine is ({known!r}); leave it out"
        )
    taken["base_url"] = _root(url) + "/v1"
    if taken.get("api_key") is None and taken.get("openai_api_key") is None:
        taken.pop("openai_api_key", None)
        taken["api_key"] = settings().api_key or _NO_KEY
    return taken


def bridge_of(memory: Memory | AsyncMemory | None, base_url: str, api_key: object) -> ChatBridge:
    """The bridge to a memory, by default the process's own with that server."""
    if memory is not None:
        return ChatBridge(memory)
    text = api_key.get_secret_value() if isinstance(api_key, SecretStr) else None
    key = None if text == _NO_KEY else text
    return ChatBridge(shared_memory(_root(base_url), api_key=key))


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
