"""One error tree, ordered by what the caller can do about it.

    InferScaleError
    ├── ConfigurationError      set-up is wrong: change a setting, install an extra
    │   └── MissingDependency   an optional package is absent: the message names the extra
    ├── NotFoundError           no such fact in this namespace
    ├── NamespaceError          no user, agent, run or app given where one is needed
    ├── HandleError             a fact handle is malformed, forged, stale or foreign
    ├── ProtocolError           a request to or from the server breaks the wire protocol
    ├── EngineError             the engine refused or failed
    │   ├── EngineUnavailable   nothing answers at that address: start it, or retry
    │   ├── EngineTimeout       no answer within the limit: retry or raise the limit
    │   └── IncompatibleModel   this model cannot take injected memory: serve it as text
    ├── StoreError              the fact or KV store failed
    │   ├── CorruptSegment      a stored segment fails its checks: it is encoded again
    │   ├── WrongKey            a stored segment was encrypted with another key, or with none
    │   └── StoreFull           a byte budget is used up: raise it or free some
    ├── ImportFormatError       a file to import is not in the expected form
    └── ContextOverflow         the prompt does not fit the model's context

Every message carries the offending value, the limit where there is one, and the way out.
"""

from __future__ import annotations

import traceback
from pathlib import PurePath

__all__ = [
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
    "WrongKey",
    "blame",
]


class InferScaleError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(InferScaleError):
    """A setting or argument is wrong; change it."""


class MissingDependency(ConfigurationError, ImportError):
    """An optional dependency is not installed.

    Args:
        package: The distribution that is missing.
        extra: The extra of ``inferscale-sdk`` that brings it.
        purpose: What it is needed for, to complete "… is needed for …".
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{package!r} is needed for {purpose} and is not installed; "
            f"run: pip install 'inferscale-sdk[{extra}]'"
        )
        self.package = package
        self.extra = extra


class NotFoundError(InferScaleError, LookupError):
    """No such fact in the caller's namespace."""


class NamespaceError(InferScaleError, ValueError):
    """A namespace is missing, empty or not the caller's."""


class HandleError(InferScaleError, ValueError):
    """A fact handle is malformed, forged, stale or belongs to another namespace."""


class ProtocolError(InferScaleError, ValueError):
    """A message breaks the wire protocol between client and server."""


class EngineError(InferScaleError):
    """The engine refused the request or failed while serving it."""


class EngineUnavailable(EngineError, ConnectionError):
    """Nothing answers at the engine's address."""


class EngineTimeout(EngineError, TimeoutError):
    """The engine did not answer within the limit."""


class IncompatibleModel(EngineError):
    """The model cannot take injected memory; it can still be served as text."""


class StoreError(InferScaleError):
    """A fact store or KV store failed."""


class CorruptSegment(StoreError):
    """A stored segment fails a check (magic, version, checksum, shape)."""


class WrongKey(StoreError):
    """A stored segment was encrypted with another key, or not at all; it is left alone."""


class StoreFull(StoreError):
    """A store's byte budget is used up."""


class ImportFormatError(InferScaleError, ValueError):
    """A file to import is not in the expected form."""


class ContextOverflow(InferScaleError, ValueError):
    """A prompt does not fit into the model's context.

    Args:
        n_tokens: Prompt tokens plus the tokens reserved for the answer.
        limit: The model's context length in tokens.
        hint: What the caller can change.
    """

    def __init__(self, n_tokens: int, limit: int, hint: str) -> None:
        super().__init__(
            f"the prompt needs {n_tokens} tokens but the model's context holds {limit}; {hint}"
        )
        self.n_tokens = n_tokens
        self.limit = limit


def blame(error: BaseException) -> str:
    """An error's kind and where it comes from, for logs: never its message.

    A message may quote what people said: the value that could not be stored, the request that a
    server refused.
    """
    trail = [
        f"{PurePath(frame.filename).name}:{frame.lineno}"
        for frame in reversed(traceback.extract_tb(error.__traceback__)[-3:])
    ]
    kind = type(error).__name__
    cause = error.__cause__
    because = f", because of {type(cause).__name__}" if cause is not None else ""
    return f"{kind}{because}" + (f" at {' < '.join(trail)}" if trail else "")
