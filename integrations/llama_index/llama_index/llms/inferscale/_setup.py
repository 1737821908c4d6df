"""What the model needs before it exists: a bridge to a memory, and a key for the client."""

from __future__ import annotations

from inferscale_sdk import AsyncMemory, ConfigurationError, Memory
from inferscale_sdk.bridge import ChatBridge, shared_memory
from inferscale_sdk.config import settings

__all__ = ["bridge_to", "client_key"]

_NO_KEY = "EMPTY"
"""The client of openai insists on a key; a vLLM server without one ignores it."""


def client_key(api_key: str | None) -> str:
    """The server's bearer token. Never ``OPENAI_API_KEY``."""
    return api_key or settings().api_key or _NO_KEY


def bridge_to(
    memory: Memory | AsyncMemory | None, api_base: str | None, api_key: str | None
) -> ChatBridge:
    """The bridge to a memory, by default the process's own.

    Raises:
        ConfigurationError: No server is named, or two.
    """
    if memory is None:
        url = api_base or settings().base_url
        if url is None:
            raise ConfigurationError(
                "no server is named; pass memory=Memory(VLLMEngine(…)) or "
                "api_base='http://127.0.0.1:8000', or set INFERSCALE_BASE_URL. "
                "'inferscale serve' starts a server"
            )
        return ChatBridge(shared_memory(url, api_key=None if api_key == _NO_KEY else api_key))
    bridge = ChatBridge(memory)
    if api_base and _root(api_base) != _root(bridge.engine.base_url):
        raise ConfigurationError(
            f"api_base={api_base!r} is not where the memory's engine is "
            f"({bridge.engine.base_url!r}); leave it out"
        )
    return bridge


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
