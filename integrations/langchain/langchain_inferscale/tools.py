"""Memory tools for agents: search, remember, forget."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.tools import BaseTool, StructuredTool

from inferscale_sdk import AsyncMemory, Memory, ScoredFact
from langchain_inferscale._scope import Ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of
from langchain_inferscale.documents import Mode, as_text, fact_document

__all__ = [
    "create_forget_tool",
    "create_memory_tools",
    "create_remember_tool",
    "create_search_memory_tool",
]

_NOTHING = "Nothing is remembered about that."
_FORGET_SIMILARITY = 0.75
"""Below this, what was found is not what the model asked to forget."""


def create_search_memory_tool(
    memory: Memory | AsyncMemory | None = None,
    *,
    k: int = 5,
    mode: Mode = "handle",
    name: str = "search_memory",
    **ids: Any,
) -> BaseTool:
    """A tool that looks something up in the user's memory.

    Its result is handles, which :class:`ChatInferScale` turns into injected facts; other models
    need ``mode="text"``. The documents are the tool message's artifact.

    Args:
        memory: Where to look; by default the process's own memory.
        k: Facts at most.
        mode: ``handle`` or ``text``.
        name: The tool's name.
        ids: Whose memory (``user_id=…``); by default the user of the run.
    """

    def search_memory(query: str) -> tuple[str, list[Document]]:
        store, scope = memory_of(memory), _scope(ids)
        found = store.search(query, top_k=k, **scope)
        handles = store.mint(found)
        documents = [fact_document(f, h, mode) for f, h in zip(found, handles, strict=True)]
        return (as_text(documents) or _NOTHING), documents

    return StructuredTool.from_function(
        search_memory,
        name=name,
        description=(
            "Look something up in what is remembered about the user from earlier conversations. "
            "What is found appears in your notes."
        ),
        response_format="content_and_artifact",
    )


def create_remember_tool(
    memory: Memory | AsyncMemory | None = None, *, name: str = "remember", **ids: Any
) -> BaseTool:
    """A tool that stores a statement about the user.

    Args:
        memory: Where to keep it; by default the process's own memory.
        name: The tool's name.
        ids: Whose memory (``user_id=…``); by default the user of the run.
    """

    def remember(statement: str) -> str:
        stored = memory_of(memory).add(statement, **_scope(ids))
        return "Remembered." if stored else "There was nothing to remember."

    return StructuredTool.from_function(
        remember,
        name=name,
        description=(
            "Remember a fact about the user for later conversations: one complete statement that "
            "will be understood on its own."
        ),
    )


def create_forget_tool(
    memory: Memory | AsyncMemory | None = None, *, name: str = "forget", **ids: Any
) -> BaseTool:
    """A tool that deletes the remembered statement nearest to the one given.

    Nothing is deleted unless a statement reads the same or means nearly the same.

    Args:
        memory: Where it is kept; by default the process's own memory.
        name: The tool's name.
        ids: Whose memory (``user_id=…``); by default the user of the run.
    """

    def forget(statement: str) -> str:
        store, scope = memory_of(memory), _scope(ids)
        found = store.search(statement, top_k=5, **scope)
        chosen = _meant(statement, found)
        if chosen is None:
            return _NOTHING
        store.delete(chosen.fact.id, **scope)
        return f"Forgotten: {chosen.fact.text}"

    return StructuredTool.from_function(
        forget,
        name=name,
        description=(
            "Forget something that is remembered about the user, when asked to or when it is no "
            "longer true. Say what to forget as one complete statement."
        ),
    )


def create_memory_tools(
    memory: Memory | AsyncMemory | None = None, *, mode: Mode = "handle", **ids: Any
) -> list[BaseTool]:
    """All three tools on one memory."""
    return [
        create_search_memory_tool(memory, mode=mode, **ids),
        create_remember_tool(memory, **ids),
        create_forget_tool(memory, **ids),
    ]


def _scope(ids: dict[str, Any]) -> Ids:
    return merge_ids(object_ids(ids), run_ids())


def _meant(statement: str, found: list[ScoredFact]) -> ScoredFact | None:
    same = [f for f in found if f.fact.text.strip().casefold() == statement.strip().casefold()]
    near = [f for f in found if (f.similarity or 0.0) >= _FORGET_SIMILARITY]
    return next(iter(same or near), None)
