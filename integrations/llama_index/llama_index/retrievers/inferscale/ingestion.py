"""Documents into facts: each chunk is stored and encoded once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, Document, TransformComponent
from llama_index.retrievers.inferscale._nodes import (
    DOCUMENT_KEY,
    HASH_KEY,
    Mode,
    document_of,
    fact_node,
    node_digest,
    node_fact,
)
from llama_index.retrievers.inferscale._store import as_memory, store_id

from inferscale_sdk import AsyncMemory, Fact, Memory
from inferscale_sdk.bridge import Ids, object_ids
from inferscale_sdk.types import NewFact

__all__ = ["InferScaleIngestion", "ingest"]

CHUNK_TOKENS = 200
_PAGE = 200


class InferScaleIngestion(TransformComponent):
    """The last step of an ``IngestionPipeline``: nodes in, the same nodes with handles out.

    Every node becomes a fact that is encoded ahead of time. Running a pipeline again stores
    nothing twice; chunks that are gone from a document are forgotten by
    :meth:`InferScaleRetriever.refresh`, which sees whole documents, not by this step.

        IngestionPipeline(transformations=[SentenceSplitter(), InferScaleIngestion(memory)])

    A pipeline with ``num_workers`` runs in other processes, which have no memory: leave it out.

    Args:
        memory: Where to keep the facts; by default the process's own.
        **kwargs: ``user_id``, ``agent_id``, ``run_id``, ``app_id`` and ``mode``.
    """

    user_id: str | None = Field(default=None, description="Whose documents.")
    agent_id: str | None = Field(default=None, description="Of which agent.")
    run_id: str | None = Field(default=None, description="Of which session.")
    app_id: str | None = Field(default=None, description="Of which application.")
    mode: Mode = Field(default="handle", description="What the model is shown of a node.")
    # Part of a pipeline's cache key: what one store has, another has not.
    store: str = Field(default="", description="Which store, for caches.")

    _memory: Memory = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | None = None, **kwargs: Any) -> None:
        core = as_memory(memory)
        super().__init__(**{**kwargs, "store": store_id(core)})
        self._memory = core

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised form."""
        return "InferScaleIngestion"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Store what is new and return every node that has text, in order."""
        return list(_stored(self._memory, nodes, object_ids(self), self.mode))

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Async twin: the store works in a thread."""
        return await asyncio.to_thread(self.__call__, nodes, **kwargs)


def ingest(
    memory: Memory,
    documents: Sequence[Document],
    ids: Ids,
    transformations: Sequence[TransformComponent] | None,
    mode: Mode,
) -> list[BaseNode]:
    """Store the chunks of whole documents, and forget those they no longer have."""
    nodes: Sequence[BaseNode] = list(documents)
    for step in transformations or [SentenceSplitter(chunk_size=CHUNK_TOKENS, chunk_overlap=0)]:
        nodes = step(nodes)
    stored = _stored(memory, nodes, ids, mode)
    kept = {(document_of(node), node_digest(node)) for node in nodes}
    for page in _pages(list(dict.fromkeys(document.doc_id for document in documents))):
        for fact in _mine(memory, ids, {DOCUMENT_KEY: {"in": page}}):
            if _identity(fact) not in kept:
                memory.delete(fact.id, **ids)
    return list(stored)


def _stored(memory: Memory, nodes: Sequence[BaseNode], ids: Ids, mode: Mode) -> list[BaseNode]:
    """The nodes that have text as nodes with handles; new ones are stored first."""
    known: dict[tuple[str | None, str], Fact] = {}
    for page in _pages(list(dict.fromkeys(node_digest(node) for node in nodes))):
        known |= {_identity(f): f for f in _mine(memory, ids, {HASH_KEY: {"in": page}})}
    new: dict[tuple[str | None, str], NewFact] = {}
    for node in nodes:
        identity = (document_of(node), node_digest(node))
        fact = None if identity in known else node_fact(node)
        if fact is not None:
            new.setdefault(identity, fact)
    added = memory.add_facts(list(new.values()), **ids)
    known |= {_identity(fact): fact for fact in added}
    facts = [known.get((document_of(node), node_digest(node))) for node in nodes]
    there = list({fact.id: fact for fact in facts if fact is not None}.values())
    handles = memory.mint(there)
    return [fact_node(f, handle, mode) for f, handle in zip(there, handles, strict=True)]


def _mine(memory: Memory, ids: Ids, filters: dict[str, Any]) -> list[Fact]:
    """Facts of exactly these owners: a user's documents are not those of one of his agents."""
    found = memory.get_all(filters=filters, **ids)
    return [
        fact
        for fact in found
        if all(
            getattr(fact.namespace, name) == ids.get(name)
            for name in ("agent_id", "run_id", "app_id")
        )
    ]


def _identity(fact: Fact) -> tuple[str | None, str]:
    return fact.metadata.get(DOCUMENT_KEY), str(fact.metadata.get(HASH_KEY))


def _pages(values: list[str]) -> list[list[str]]:
    return [values[i : i + _PAGE] for i in range(0, len(values), _PAGE)]
