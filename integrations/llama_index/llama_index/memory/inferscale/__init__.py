"""Memories that give the model handles of the facts that matter."""

from llama_index.memory.inferscale.base import InferScaleMemory
from llama_index.memory.inferscale.block import InferScaleMemoryBlock

__all__ = ["InferScaleMemory", "InferScaleMemoryBlock"]
