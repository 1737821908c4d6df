"""``InferScaleRetriever``: finds facts and hands out handles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, Field

from inferscale_sdk import Memory
from langchain_inferscale._scope import config_ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of
from langchain_inferscale.documents import Mode, fact_document

__all__ = ["InferScaleRetriever"]


class InferScaleRetriever(BaseRetriever):
    """Retrieves what is remembered, as documents whose text is a handle.

    The chain carries the handle wherever it carries text; :class:`ChatInferScale` injects the fact.
    Whose memory is searched is named in the constructor, in the call (``invoke(query,
    user_id="alice")``) or in ``config={"configurable": {"user_id": "alice"}}``.

    Args:
        memory: Where to search; by default the process's own memory.
        k: Documents at most.
        mode: ``handle``, or ``text`` for rerankers and compressors, which must read. Put
            :func:`~langchain_inferscale.as_handles` behind them.
        filters: Metadata conditions, ``{"topic": "food"}`` or ``{"year": {"gte": 2020}}``.
        threshold: Least cosine similarity.
        since: Happened at or after.
        until: Happened before.
        user_id: Whose memory, if this object serves one user only.
        agent_id: Only what this agent was told.
        run_id: Only this session.
        app_id: Only this application.
    """

    memory: Any = Field(default=None, exclude=True, repr=False)
    k: int = 20
    mode: Mode = "handle"
    filters: Mapping[str, Any] | None = None
    threshold: float | None = None
    since: datetime | None = None
    until: datetime | None = None
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    app_id: str | None = None

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def invoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """The documents that matter for ``input``, best first; ids in ``configurable`` count."""
        return super().invoke(input, config, **_with_ids(config, kwargs))

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Async twin of :meth:`invoke`."""
        return await super().ainvoke(input, config, **_with_ids(config, kwargs))

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        mode: Mode | None = None,
        filters: Mapping[str, Any] | None = None,
        ids: Mapping[str, str] | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        app_id: str | None = None,
    ) -> list[Document]:
        given = {"user_id": user_id, "agent_id": agent_id, "app_id": app_id}
        memory: Memory = memory_of(self.memory)
        found = memory.search(
            query,
            top_k=self.k if k is None else k,
            filters=self.filters if filters is None else filters,
            threshold=self.threshold,
            since=self.since,
            until=self.until,
            **merge_ids(object_ids(self), ids, given, run_ids()),
        )
        handles = memory.mint(found)
        return [
            fact_document(scored, handle, mode or self.mode)
            for scored, handle in zip(found, handles, strict=True)
        ]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **kwargs: Any
    ) -> list[Document]:
        # Embedders and databases block.
        from langchain_core.runnables import run_in_executor

        return await run_in_executor(
            None, self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **kwargs
        )


def _with_ids(config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    ids = merge_ids(kwargs.get("ids"), config_ids(config))
    return {**kwargs, "ids": ids} if ids else kwargs
