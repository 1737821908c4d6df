"""Restored memories find their store again.

A workflow's context is saved as JSON. A store is not part of it: what is saved is which one, and a
restored memory takes it up where this process has it open.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from llama_index.retrievers.inferscale._store import as_memory, store_id

from inferscale_sdk import AsyncMemory, ConfigurationError, Memory

__all__ = ["Binding"]

_lock = threading.Lock()
_open: WeakValueDictionary[str, Memory] = WeakValueDictionary()


class Binding:
    """A memory object's hold on its store.

    Args:
        memory: The store; by default the one that ``store`` names, or the process's own.
        store: Which one it was, in a restored object.
    """

    def __init__(self, memory: Memory | AsyncMemory | None, store: str | None) -> None:
        self.store = store
        self._memory: Memory | None = None
        if memory is not None or store is None:
            self._hold(as_memory(memory))

    @property
    def memory(self) -> Memory:
        """The store.

        Raises:
            ConfigurationError: This process does not have it open.
        """
        if self._memory is None:
            with _lock:
                found = _open.get(self.store or "")
            own = found if found is not None else as_memory(None)
            if store_id(own) != self.store:
                raise ConfigurationError(
                    f"this memory was restored and belongs to the store {self.store}, which is "
                    "not open in this process; make the Memory for it first, and give it to one "
                    "InferScaleMemory or to bind()"
                )
            self._hold(own)
            return own
        return self._memory

    def _hold(self, memory: Memory) -> None:
        self._memory = memory
        self.store = store_id(memory)
        with _lock:
            _open[self.store] = memory

    def __deepcopy__(self, memo: Any) -> Binding:
        # A copy of a memory is another view of the same store.
        return self
