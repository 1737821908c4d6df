"""Attention-layer memory for LangChain and LlamaIndex applications.

Importing this package is cheap: the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from inferscale_sdk._version import __version__

if TYPE_CHECKING:
    from inferscale_sdk.engines.transformers import TransformersEngine
    from inferscale_sdk.engines.vllm import VLLMEngine
    from inferscale_sdk.errors import (
        ConfigurationError,
        ContextOverflow,
        CorruptSegment,
        EngineError,
        EngineTimeout,
        EngineUnavailable,
        HandleError,
        ImportFormatError,
        IncompatibleModel,
        InferScaleError,
        MissingDependency,
        NamespaceError,
        NotFoundError,
        ProtocolError,
        StoreError,
        StoreFull,
    )
    from inferscale_sdk.memory import AsyncMemory, Memory
    from inferscale_sdk.types import (
        Fact,
        FactHandle,
        InjectionReport,
        InjectionStatus,
        Message,
        Namespace,
        ScoredFact,
    )

_HOME = {
    "AsyncMemory": "memory",
    "Memory": "memory",
    "TransformersEngine": "engines.transformers",
    "VLLMEngine": "engines.vllm",
    **dict.fromkeys(
        (
            "ConfigurationError",
            "ContextOverflow",
            "CorruptSegment",
            "EngineError",
            "EngineTimeout",
            "EngineUnavailable",
            "HandleError",
            "ImportFormatError",
            "IncompatibleModel",
            "InferScaleError",
            "MissingDependency",
            "NamespaceError",
            "NotFoundError",
            "ProtocolError",
            "StoreError",
            "StoreFull",
        ),
        "errors",
    ),
    **dict.fromkeys(
        (
            "Fact",
            "FactHandle",
            "InjectionReport",
            "InjectionStatus",
            "Message",
            "Namespace",
            "ScoredFact",
        ),
        "types",
    ),
}

__all__ = [
    "AsyncMemory",
    "ConfigurationError",
    "ContextOverflow",
    "CorruptSegment",
    "EngineError",
    "EngineTimeout",
    "EngineUnavailable",
    "Fact",
    "FactHandle",
    "HandleError",
    "ImportFormatError",
    "IncompatibleModel",
    "InferScaleError",
    "InjectionReport",
    "InjectionStatus",
    "Memory",
    "Message",
    "MissingDependency",
    "Namespace",
    "NamespaceError",
    "NotFoundError",
    "ProtocolError",
    "ScoredFact",
    "StoreError",
    "StoreFull",
    "TransformersEngine",
    "VLLMEngine",
    "__version__",
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
