"""Retrieval of facts and of documents whose chunks were encoded ahead of time."""

from llama_index.retrievers.inferscale.base import InferScaleRetriever
from llama_index.retrievers.inferscale.ingestion import InferScaleIngestion

__all__ = ["InferScaleIngestion", "InferScaleRetriever"]
