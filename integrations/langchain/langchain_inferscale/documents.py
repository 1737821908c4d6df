"""Facts as documents: with the handle for the model, or with the text for people and rerankers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from langchain_core.documents import Document

from inferscale_sdk import Fact, FactHandle, ScoredFact

__all__ = ["HANDLE_KEY", "Mode", "as_handles", "as_text", "fact_document"]

HANDLE_KEY = "inferscale"
"""Where a document's metadata keeps its handle; rerankers rewrite text and drop ids."""

Mode: TypeAlias = Literal["handle", "text"]


def fact_document(found: ScoredFact | Fact, handle: FactHandle, mode: Mode = "handle") -> Document:
    """A fact as a document.

    Its text is the handle (``mode="handle"``) or the fact (``mode="text"``); the handle is its id
    and stands in its metadata either way, beside what is known about the fact.
    """
    fact = found.fact if isinstance(found, ScoredFact) else found
    metadata: dict[str, Any] = {**fact.metadata, HANDLE_KEY: handle.marker, "fact_id": fact.id}
    if fact.event_time is not None:
        metadata["event_time"] = fact.event_time.isoformat()
    if fact.speaker is not None:
        metadata["speaker"] = fact.speaker
    if isinstance(found, ScoredFact):
        metadata["score"] = found.score
        if found.similarity is not None:
            metadata["similarity"] = found.similarity
    text = handle.marker if mode == "handle" else fact.text
    return Document(page_content=text, metadata=metadata, id=handle.marker)


def as_handles(documents: Iterable[Document]) -> list[Document]:
    """Documents with their handles as text, wherever they have one; others as they are.

    Put it behind a reranker that worked on ``mode="text"``:
    ``compression_retriever | as_handles``.
    """
    return [
        document.model_copy(update={"page_content": document.metadata[HANDLE_KEY]})
        if isinstance(document.metadata.get(HANDLE_KEY), str)
        else document
        for document in documents
    ]


def as_text(documents: Sequence[Document]) -> str:
    """The documents' texts, one a line: the ``format_docs`` of retrieval chains."""
    return "\n".join(document.page_content for document in documents)
