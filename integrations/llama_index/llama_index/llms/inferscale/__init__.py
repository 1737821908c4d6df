"""A model on a vLLM server that injects what fact handles stand for."""

from llama_index.llms.inferscale.base import InferScaleLLM

__all__ = ["InferScaleLLM"]
