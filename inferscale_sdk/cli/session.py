"""Where commands find memory, KV and engine when they are not told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_sdk.cli.options import EngineChoice
from inferscale_sdk.config import settings

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Engine
    from inferscale_sdk.engines.vllm import VLLMEngine
    from inferscale_sdk.memory import Memory

__all__ = [
    "base_url_or_none",
    "connect",
    "kv_folder",
    "launch_engine",
    "memory_folder",
    "open_memory",
    "owner_ids",
]

BUNDLED = "bundled"


def memory_folder(given: Path | None = None) -> Path:
    """Where facts and vectors lie."""
    return given or settings().home / "memory"


def kv_folder() -> Path:
    """Where servers that we start keep KV."""
    return settings().home / "kv"


def base_url_or_none(given: str | None = None) -> str | None:
    """The running server that is meant, if any is."""
    return given or settings().base_url


def connect(base_url: str) -> VLLMEngine:
    """Connect to a running server."""
    from inferscale_sdk.engines.vllm import VLLMEngine

    return VLLMEngine(base_url)


def launch_engine(model: str | None = None, kind: EngineChoice = EngineChoice.VLLM) -> Engine:
    """Start an engine of our own that ends with us; ``None`` and ``bundled`` mean the small model.

    Both kinds keep KV in the same folder, and use what the other has put there.
    """
    source = None if model in (None, BUNDLED) else model
    if kind is EngineChoice.TRANSFORMERS:
        from inferscale_sdk.engines.transformers import TransformersEngine

        return TransformersEngine(source, disk_path=kv_folder())
    from inferscale_sdk.engines.vllm import VLLMEngine

    return VLLMEngine.launch(
        source,
        disk_path=kv_folder(),
        log_path=settings().home / "logs" / "server.log",
    )


def open_memory(store: Path | None, engine: Engine | None = None) -> Memory:
    """A memory without threads: what a command leaves to index, a search indexes."""
    from inferscale_sdk.memory import Memory

    return Memory(engine, path=memory_folder(store), background=False)


def owner_ids(user: str, agent: str | None, run: str | None, app_id: str | None) -> dict[str, Any]:
    """The ids of a command's options as the verbs of a memory take them."""
    return {"user_id": user, "agent_id": agent, "run_id": run, "app_id": app_id}
