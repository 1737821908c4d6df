"""Which store: the one that was given, or the process's own."""

from __future__ import annotations

import hashlib

from inferscale_sdk import AsyncMemory, Memory
from inferscale_sdk.bridge import shared_memory

__all__ = ["as_memory", "store_id"]


def as_memory(memory: Memory | AsyncMemory | None) -> Memory:
    """The memory that was given, or the process's own."""
    if memory is None:
        return shared_memory()
    return memory.unwrap() if isinstance(memory, AsyncMemory) else memory


def store_id(memory: Memory) -> str:
    """What tells one store from another, without telling its secret."""
    return hashlib.sha256(b"inferscale-store-id\0" + memory.store.secret).hexdigest()[:16]
