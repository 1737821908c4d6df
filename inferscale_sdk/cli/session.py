"""Where commands find memory, KV and engine when they are not told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from inferscale_sdk.cli.options import EngineChoice
from inferscale_sdk.cli.output import err
from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FACTS_FILE

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
    "memory_there",
    "open_memory",
    "owner_ids",
    "reading",
]

BUNDLED = "bundled"


def memory_folder(given: Path | None = None) -> Path:
    """Where facts and vectors lie."""
    return given or settings().home / "memory"


def memory_there(given: Path | None = None) -> Path:
    """Where facts lie, if some ever did.

    Raises:
        ConfigurationError: There is no memory.
    """
    folder = memory_folder(given)
    if not (folder / FACTS_FILE).is_file():
        raise ConfigurationError(
            f"there is no memory in {folder} yet; name the folder of another with --store, "
            "or make one with 'inferscale memory add'"
        )
    return folder


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


@contextmanager
def reading(store: Path | None) -> Iterator[Memory]:
    """A memory to look into: where the usual folder has none yet, an empty one that is not kept."""
    try:
        folder = memory_there(store)
    except ConfigurationError as error:
        if store is not None:
            raise
        err().print(f"no memories yet: {error}", markup=False)
        with TemporaryDirectory() as empty, open_memory(Path(empty)) as memory:
            yield memory
        return
    with open_memory(folder) as memory:
        yield memory


def owner_ids(user: str, agent: str | None, run: str | None, app_id: str | None) -> dict[str, Any]:
    """The ids of a command's options as the verbs of a memory take them."""
    return {"user_id": user, "agent_id": agent, "run_id": run, "app_id": app_id}
