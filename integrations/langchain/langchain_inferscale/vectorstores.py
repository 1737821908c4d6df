"""``InferScaleVectorStore``: documents added once, whose KV is encoded ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from inferscale_sdk import AsyncMemory, Fact, Memory, ScoredFact, VLLMEngine
from inferscale_sdk.config import settings
from inferscale_sdk.types import NewFact
from langchain_inferscale._embedding import LangChainEmbedder
from langchain_inferscale._scope import Ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of
from langchain_inferscale.retrievers import InferScaleRetriever

__all__ = ["InferScaleVectorStore"]

_ID_KEY = "document_id"
_COLLECTION_KEY = "collection"
_BOOKKEEPING = frozenset({_ID_KEY, _COLLECTION_KEY})


class InferScaleVectorStore(VectorStore):
    """Documents as facts: embedded, and encoded to KV in the background as they are added.

    Searching gives back documents as they were added, so that everything made for vector stores
    works. :meth:`as_retriever` gives handles, for chains that end in :class:`ChatInferScale`.
    Documents belong to one user, as all memory does: the chat must be asked for the same one.

    Args:
        memory: Where documents are kept; by default the process's own memory.
        collection: Keeps apart what several stores keep in one memory.
        user_id: Whose documents; by default the run configuration's user.
        agent_id: Of which agent.
        run_id: Of which session.
        app_id: Of which application.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | None = None,
        *,
        collection: str = "documents",
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> None:
        self._given = memory
        self.collection = collection
        self.user_id = user_id
        self.agent_id = agent_id
        self.run_id = run_id
        self.app_id = app_id

    @property
    def memory(self) -> Memory:
        """Where the documents are; give it to the :class:`ChatInferScale` that reads them."""
        return memory_of(self._given)

    @property
    def embeddings(self) -> Embeddings | None:
        """None: the memory embeds."""
        return None

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        memory: Memory | AsyncMemory | None = None,
        base_url: str | None = None,
        path: Path | str | None = None,
        **kwargs: Any,
    ) -> InferScaleVectorStore:
        """A store with ``texts`` in it.

        Args:
            texts: What to add.
            embedding: Embeds for a memory that is made here, in a folder of its own.
                A memory that is given embeds by itself.
            metadatas: One for each text.
            ids: One for each text.
            memory: Where to add them.
            base_url: The server of a memory that is made here; by default ``INFERSCALE_BASE_URL``.
            path: The folder of a memory that is made here.
            kwargs: Further arguments of the constructor.
        """
        if memory is None and (embedding is not None or path is not None or base_url is not None):
            name = kwargs.get("collection", "documents")
            url = base_url or settings().base_url
            memory = Memory(
                VLLMEngine(url) if url else None,
                path=path or settings().home / "collections" / name,
                embedder=LangChainEmbedder(embedding) if embedding is not None else None,
            )
        store = cls(memory, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    # -- writing ---------------------------------------------------------------------------

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add documents, or replace those of the same id; returns their ids."""
        ids = kwargs.pop("ids", None) or [document.id for document in documents]
        metadatas = [document.metadata for document in documents]
        texts = [document.page_content for document in documents]
        return self.add_texts(texts, metadatas, ids=ids, **kwargs)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those of the same id; returns their ids.

        Raises:
            ValueError: There are not as many ids or metadatas as texts.
            ConfigurationError: A text is blank or too long, or metadata is not JSON.
        """
        chosen = list(texts)
        names = [name or uuid4().hex for name in (ids or [None] * len(chosen))]
        about = metadatas if metadatas is not None else [{} for _ in chosen]
        if not len(names) == len(chosen) == len(about):
            raise ValueError(
                f"{len(chosen)} texts came with {len(names)} ids and {len(about)} metadatas"
            )
        scope = self._ids()
        there = {fact.metadata[_ID_KEY]: fact for fact in self._find(names, scope)}
        fresh: list[NewFact] = []
        for text, name, metadata in zip(chosen, names, about, strict=True):
            kept = {**metadata, _ID_KEY: name, _COLLECTION_KEY: self.collection}
            if name in there:
                self.memory.update(there[name].id, text=text, metadata=kept, **scope)
            else:
                fresh.append(NewFact(text, self.collection, metadata=kept))
        self.memory.add_facts(fresh, **scope)
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents, their vectors and their KV; ``None`` deletes the whole collection."""
        scope = self._ids()
        for fact in self._find(ids, scope):
            self.memory.delete(fact.id, **scope)
        return True

    # -- reading ---------------------------------------------------------------------------

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents by id; unknown ids are left out."""
        found = {fact.metadata[_ID_KEY]: fact for fact in self._find(ids, self._ids())}
        return [_document(found[name]) for name in ids if name in found]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The ``k`` documents that matter most, best first; ``filter`` takes conditions."""
        return [_document(scored.fact) for scored in self._search(query, k, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same with cosine similarities; lexical hits that have none come with 0."""
        found = self._search(query, k, **kwargs)
        return [(_document(scored.fact), scored.similarity or 0.0) for scored in found]

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: max(0.0, min(1.0, similarity))

    def as_retriever(self, **kwargs: Any) -> InferScaleRetriever:  # type: ignore[override]
        """A retriever of handles on this store.

        Args:
            kwargs: Arguments of :class:`InferScaleRetriever`; ``search_kwargs`` with ``k`` and
                ``filter``, as vector stores have them, is understood.

        Raises:
            ValueError: A ``search_type`` other than ``similarity`` is asked for.
        """
        search_type = kwargs.pop("search_type", "similarity")
        if search_type not in ("similarity", "similarity_score_threshold"):
            raise ValueError(f"search_type={search_type!r} is not offered; use 'similarity'")
        asked = dict(kwargs.pop("search_kwargs", None) or {})
        options = {"k": asked.get("k", 4), "threshold": asked.get("score_threshold"), **kwargs}
        filters = {**(asked.get("filter") or {}), **(options.pop("filters", None) or {})}
        return InferScaleRetriever(
            memory=self._given,
            filters={**filters, _COLLECTION_KEY: self.collection},
            **{**object_ids(self), **options},
        )

    # -- inside ----------------------------------------------------------------------------

    def _ids(self) -> Ids:
        return merge_ids(object_ids(self), run_ids())

    def _find(self, names: Sequence[str] | None, scope: Ids) -> list[Fact]:
        filters: dict[str, Any] = {_COLLECTION_KEY: self.collection}
        if names is not None:
            filters[_ID_KEY] = {"in": list(names)}
        return self.memory.get_all(filters=filters, **scope)

    def _search(self, query: str, k: int, **kwargs: Any) -> list[ScoredFact]:
        filters = {**(kwargs.get("filter") or {}), _COLLECTION_KEY: self.collection}
        threshold = kwargs.get("score_threshold")
        return self.memory.search(
            query, top_k=k, filters=filters, threshold=threshold, **self._ids()
        )


def _document(fact: Fact) -> Document:
    metadata = {k: v for k, v in fact.metadata.items() if k not in _BOOKKEEPING}
    return Document(page_content=fact.text, metadata=metadata, id=fact.metadata[_ID_KEY])
