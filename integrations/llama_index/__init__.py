"""The names of ``llama-index-inferscale``, under their place in a checkout."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index.llms.inferscale import InferScaleLLM
    from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock
    from llama_index.retrievers.inferscale import InferScaleIngestion, InferScaleRetriever

_HOME = {
    "InferScaleIngestion": "llama_index.retrievers.inferscale",
    "InferScaleLLM": "llama_index.llms.inferscale",
    "InferScaleMemory": "llama_index.memory.inferscale",
    "InferScaleMemoryBlock": "llama_index.memory.inferscale",
    "InferScaleRetriever": "llama_index.retrievers.inferscale",
}

__all__ = [
    "InferScaleIngestion",
    "InferScaleLLM",
    "InferScaleMemory",
    "InferScaleMemoryBlock",
    "InferScaleRetriever",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
