"""Facts as nodes, and nodes as facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from llama_index.core.schema import (
    BaseNode,
    Document,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from inferscale_sdk import Fact, FactHandle, ScoredFact
from inferscale_sdk.types import NewFact

__all__ = [
    "DOCUMENT_KEY",
    "HANDLE_KEY",
    "HASH_KEY",
    "Mode",
    "document_of",
    "fact_node",
    "node_digest",
    "node_fact",
    "scored_nodes",
]

HANDLE_KEY = "inferscale"
"""Where a node's metadata keeps its handle."""
DOCUMENT_KEY = "ref_doc_id"
"""Metadata of a fact that was a chunk: its document."""
HASH_KEY = "node_hash"
"""Metadata of a fact that was a chunk: digest of its text, to know it again."""

Mode: TypeAlias = Literal["handle", "text"]


def fact_node(fact: Fact, handle: FactHandle, mode: Mode = "handle") -> TextNode:
    """A fact as a node: people and embedders see the text, the model sees the handle.

    The shape is plain data, so that it survives docstores and caches. With ``mode="text"`` the
    model sees the text as well, for models that are not ``InferScaleLLM``; the handle then stands
    in the metadata only.
    """
    metadata: dict[str, Any] = {**fact.metadata, HANDLE_KEY: handle.marker, "fact_id": fact.id}
    metadata.pop(HASH_KEY, None)
    if fact.event_time is not None:
        metadata["event_time"] = fact.event_time.isoformat()
    if fact.speaker:
        metadata["speaker"] = fact.speaker
    shown = {HANDLE_KEY} if mode == "handle" else set()
    node = TextNode(
        # Another version of the fact is another node; without brackets, as ids go into paths.
        id_=handle.marker.strip("[]").removeprefix("ifs:"),
        text=fact.text,
        metadata=metadata,
        excluded_embed_metadata_keys=sorted(metadata),
        excluded_llm_metadata_keys=sorted(metadata.keys() - shown),
        # Neither formats the fact's own text, which may hold braces.
        metadata_template="{value}",
        text_template="{metadata_str}",
    )
    document = fact.metadata.get(DOCUMENT_KEY)
    if isinstance(document, str):
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return node


def scored_nodes(
    found: Sequence[ScoredFact], handles: Sequence[FactHandle], mode: Mode = "handle"
) -> list[NodeWithScore]:
    """What recall found, as retrievers return it.

    Scored by similarity, by which postprocessors cut; by the fused score, which only orders,
    where a fact was found by its words alone.
    """
    similar = all(fact.similarity is not None for fact in found)
    return [
        NodeWithScore(
            node=fact_node(scored.fact, handle, mode),
            score=scored.similarity if similar else scored.score,
        )
        for scored, handle in zip(found, handles, strict=True)
    ]


def document_of(node: BaseNode) -> str | None:
    """The id of the document that a chunk is from; a document that was not cut is its own."""
    return node.ref_doc_id or (node.doc_id if isinstance(node, Document) else None)


def node_digest(node: BaseNode) -> str:
    """What a chunk is known by: its text."""
    return hashlib.sha256(_text(node).encode()).hexdigest()[:32]


def node_fact(node: BaseNode) -> NewFact | None:
    """A chunk as a fact; ``None`` for one without text.

    Chunks of one document follow one another, so that each is encoded behind those before it.
    """
    text = _text(node)
    if not text:
        return None
    document = document_of(node)
    metadata = {**_plain(node.metadata), HASH_KEY: node_digest(node)}
    metadata.pop(HANDLE_KEY, None)
    if document is not None:
        metadata[DOCUMENT_KEY] = document
    return NewFact(text=text, conversation_id=document or "", source=document, metadata=metadata)


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE).strip()


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as JSON values: readers put dates and paths into it."""
    values: dict[str, Any] = json.loads(json.dumps(dict(metadata), default=str))
    return values
