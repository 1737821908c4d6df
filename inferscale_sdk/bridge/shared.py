"""One memory for all the objects an application makes of it.

``ConversationChain(llm=ChatInferScale(…), memory=InferScaleMemory(…))`` makes two objects, in
either order, that must know one store: handles of another store are inert.
"""

from __future__ import annotations

import atexit
import threading
from pathlib import Path

from inferscale_sdk.config import settings
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.memory import Memory

__all__ = ["shared_memory"]

_lock = threading.Lock()
_memories: dict[tuple[Path, str | None], Memory] = {}


def shared_memory(base_url: str | None = None, *, api_key: str | None = None) -> Memory:
    """The process's memory in ``INFERSCALE_HOME``, made on first use and closed at exit.

    Objects for different servers, or for none, are different; they work on one store, whose facts
    and handles are the same.

    Args:
        base_url: The server, by default ``INFERSCALE_BASE_URL``; without either the memory has no
            engine.
        api_key: Its bearer token, by default ``INFERSCALE_API_KEY``.
    """
    url = base_url or settings().base_url
    key = (settings().home, url.rstrip("/").removesuffix("/v1") if url else None)
    with _lock:
        memory = _memories.get(key)
        if memory is None:
            engine = VLLMEngine(key[1], api_key=api_key) if key[1] else None
            memory = _memories[key] = Memory(engine)
            if len(_memories) == 1:
                atexit.register(_close_all)
        return memory


def _close_all() -> None:
    with _lock:
        memories = list(_memories.values())
        _memories.clear()
    for memory in memories:
        memory.close()
        if memory.engine is not None:
            memory.engine.close()
