"""The facade: what an application remembers, and how it answers with it."""

from inferscale_sdk.memory.async_facade import AsyncMemory
from inferscale_sdk.memory.facade import Memory
from inferscale_sdk.memory.scoping import DEFAULT_USER
from inferscale_sdk.memory.values import Answer, MemoryStats, PreparedPlan

__all__ = ["DEFAULT_USER", "Answer", "AsyncMemory", "Memory", "MemoryStats", "PreparedPlan"]
