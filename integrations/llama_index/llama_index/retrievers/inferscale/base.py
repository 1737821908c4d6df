"""``InferScaleRetriever``: the facts that matter, as nodes that carry handles."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import (
    BaseNode,
    Document,
    NodeWithScore,
    QueryBundle,
    TransformComponent,
)
from llama_index.retrievers.inferscale._nodes import Mode, scored_nodes
from llama_index.retrievers.inferscale._store import as_memory
from llama_index.retrievers.inferscale.ingestion import InferScaleIngestion, ingest

from inferscale_sdk import AsyncMemory, ConfigurationError, Memory
from inferscale_sdk.bridge import Ids, merge_ids

__all__ = ["InferScaleRetriever"]

DEFAULT_TOP_K = 20


class InferScaleRetriever(BaseRetriever):
    """Finds facts, or chunks of documents, and returns their handles.

    Each node has the text for people, embedders and rerankers, and shows the model a handle
    instead, which :class:`llama_index.llms.inferscale.InferScaleLLM` turns into injected memory.

        retriever = InferScaleRetriever(memory, user_id="alice", top_k=5)
        RetrieverQueryEngine.from_args(retriever, llm=llm)

    Args:
        memory: Where facts are; by default the process's own.
        user_id: Whose facts.
        agent_id: Only of this agent.
        run_id: Only of this session.
        app_id: Only of this application.
        top_k: How many at most.
        mode: ``handle``, or ``text`` for models that know no handles.
        filters: Metadata conditions, ``{"topic": "food"}`` or ``{"year": {"gte": 2020}}``.
        threshold: Least cosine similarity.
        callback_manager: As for every retriever.

    Raises:
        ConfigurationError: ``mode`` or ``top_k`` cannot be used.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | None = None,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        top_k: int = DEFAULT_TOP_K,
        mode: Mode = "handle",
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if mode not in ("handle", "text"):
            raise ConfigurationError(f"mode={mode!r} must be 'handle' or 'text'")
        if top_k < 1:
            raise ConfigurationError(f"top_k={top_k} must be at least 1")
        super().__init__(callback_manager=callback_manager)
        self._memory = as_memory(memory)
        self._ids: Ids = merge_ids(
            {"user_id": user_id, "agent_id": agent_id, "run_id": run_id, "app_id": app_id}
        )
        self.top_k = top_k
        self.mode = mode
        self.filters = filters
        self.threshold = threshold

    @property
    def memory(self) -> Memory:
        """Where facts are."""
        return self._memory

    def scoped(self, **ids: str) -> InferScaleRetriever:
        """This retriever for another user, agent or session; what is not named stays."""
        other = copy.copy(self)
        other._ids = merge_ids({**self._ids, **ids})
        return other

    # -- documents -------------------------------------------------------------------------

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Document],
        memory: Memory | AsyncMemory | None = None,
        *,
        transformations: Sequence[TransformComponent] | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        **options: Any,
    ) -> InferScaleRetriever:
        """Cut documents into chunks, have each encoded once, and retrieve from them.

        Chunks that are stored already are left alone; those that a document no longer has are
        forgotten. Encoding goes on in the background; ``memory.wait_encoded()`` waits for it.

        Documents belong to the ids given, as every fact does, and the model must be asked with
        the same ones.

        Args:
            documents: Whole documents, with ids of their own if they are to be known again.
            memory: Where to keep the chunks; by default the process's own.
            transformations: How to cut; by default sentences, to about 200 tokens, without
                overlap, as each chunk is encoded behind those before it.
            user_id: Whose documents.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.
            **options: As for the constructor.
        """
        retriever = cls(
            memory, user_id=user_id, agent_id=agent_id, run_id=run_id, app_id=app_id, **options
        )
        retriever.refresh(documents, transformations=transformations)
        return retriever

    def refresh(
        self,
        documents: Sequence[Document],
        *,
        transformations: Sequence[TransformComponent] | None = None,
    ) -> list[BaseNode]:
        """Store new chunks of ``documents`` and forget those they no longer have."""
        return ingest(self._memory, documents, self._ids, transformations, self.mode)

    def ingestion(self) -> InferScaleIngestion:
        """The last step of an ``IngestionPipeline`` whose nodes this retriever finds."""
        return InferScaleIngestion(self._memory, mode=self.mode, **self._ids)

    # -- retrieval -------------------------------------------------------------------------

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._memory.search(
            query_bundle.query_str,
            top_k=self.top_k,
            filters=self.filters,
            threshold=self.threshold,
            **self._ids,
        )
        return scored_nodes(found, self._memory.mint(found), self.mode)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)
