"""Attention-layer memory for LangChain and LangGraph.

Retrievers, memories and stores return fact handles; :class:`ChatInferScale` turns handles, wherever
a chain or an agent has put them, into KV that is injected in front of the conversation.

Names load on first use: the agent parts need ``langchain-inferscale[agents]``, the classic memory
needs ``langchain-inferscale[classic]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_inferscale.chat_models import ChatInferScale
    from langchain_inferscale.documents import as_handles, as_text
    from langchain_inferscale.llms import InferScaleLLM
    from langchain_inferscale.memory import InferScaleMemory
    from langchain_inferscale.middleware import InferScaleMemoryMiddleware
    from langchain_inferscale.retrievers import InferScaleRetriever
    from langchain_inferscale.store import InferScaleStore
    from langchain_inferscale.tools import (
        create_forget_tool,
        create_memory_tools,
        create_remember_tool,
        create_search_memory_tool,
    )
    from langchain_inferscale.vectorstores import InferScaleVectorStore

_HOME = {
    "ChatInferScale": "chat_models",
    "InferScaleLLM": "llms",
    "InferScaleMemory": "memory",
    "InferScaleMemoryMiddleware": "middleware",
    "InferScaleRetriever": "retrievers",
    "InferScaleStore": "store",
    "InferScaleVectorStore": "vectorstores",
    "as_handles": "documents",
    "as_text": "documents",
    "create_forget_tool": "tools",
    "create_memory_tools": "tools",
    "create_remember_tool": "tools",
    "create_search_memory_tool": "tools",
}

__all__ = [
    "ChatInferScale",
    "InferScaleLLM",
    "InferScaleMemory",
    "InferScaleMemoryMiddleware",
    "InferScaleRetriever",
    "InferScaleStore",
    "InferScaleVectorStore",
    "as_handles",
    "as_text",
    "create_forget_tool",
    "create_memory_tools",
    "create_remember_tool",
    "create_search_memory_tool",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
