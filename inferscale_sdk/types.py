"""Frozen values that travel between the parts. No tensors, no I/O, no heavy imports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from inferscale_sdk.errors import NamespaceError

__all__ = [
    "EMPTY_METADATA",
    "Fact",
    "FactEvent",
    "FactEventKind",
    "FactHandle",
    "InjectionReport",
    "InjectionStatus",
    "JSONValue",
    "Message",
    "Namespace",
    "NewFact",
    "ScoredFact",
]

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"

EMPTY_METADATA: Mapping[str, Any] = MappingProxyType({})

MAX_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class Namespace:
    """Who owns a fact, or whose facts a call may see.

    As an *owner* every field is exact (``None`` means the fact has no such id). As a *scope* a
    field left ``None`` means "any": ``Namespace(user_id="alice")`` sees what Alice said to every
    agent, ``Namespace(user_id="alice", agent_id="tutor")`` only what she said to that one.
    A scope must set at least one field; there is no scope that sees everybody.

    Args:
        user_id: The person.
        agent_id: The agent or assistant.
        run_id: The session or thread.
        app_id: The application, when several share one store.

    Raises:
        NamespaceError: An id is empty, blank, longer than 256 characters or not a string.
    """

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    app_id: str | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise NamespaceError(
                    f"{f.name}={value!r} is a {type(value).__name__}; ids are strings: "
                    f"pass {f.name}={str(value)!r}"
                )
            if not value.strip():
                raise NamespaceError(f"{f.name} is empty; leave it out or give an id")
            if len(value) > MAX_ID_CHARS:
                raise NamespaceError(
                    f"{f.name} has {len(value)} characters, at most {MAX_ID_CHARS} are allowed"
                )

    def __str__(self) -> str:
        """For people: ``user 'nora', agent 'tutor'``."""
        named = ((f.name.removesuffix("_id"), getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{kind} {value!r}" for kind, value in named if value) or "nobody"

    @property
    def is_empty(self) -> bool:
        """Whether no field is set."""
        return self == Namespace()

    def covers(self, owner: Namespace) -> bool:
        """Whether this scope may see a fact of ``owner``."""
        return not self.is_empty and all(
            mine is None or mine == theirs
            for mine, theirs in (
                (self.app_id, owner.app_id),
                (self.user_id, owner.user_id),
                (self.agent_id, owner.agent_id),
                (self.run_id, owner.run_id),
            )
        )

    def canonical(self) -> str:
        """An injective text form: equal namespaces, and only those, give equal strings."""
        return json.dumps(
            [self.app_id, self.user_id, self.agent_id, self.run_id],
            ensure_ascii=True,
            separators=(",", ":"),
        )

    @property
    def partition(self) -> str:
        """The isolation domain of vectors and KV: one per app and user.

        A namespace without a user falls back to its agent, then its run, so that agent-only
        memories have a partition of their own.
        """
        kind, value = next(
            (
                (name, value)
                for name, value in (
                    ("u", self.user_id),
                    ("a", self.agent_id),
                    ("r", self.run_id),
                )
                if value is not None
            ),
            ("-", None),
        )
        return json.dumps([self.app_id, kind, value], ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Args:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: The text.
        name: Who speaks, when the role alone does not say.
        timestamp: When it was said, time-zone aware.
    """

    role: str
    content: str
    name: str | None = None
    timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to be stored; the store gives it id, version and times.

    Args:
        text: What is remembered, one statement.
        conversation_id: Groups facts that followed one another: what was said before a fact was
            said in its conversation.
        speaker: Who said it, if anyone.
        source: Where it comes from (turn id, document, URL).
        event_time: When it happened, time-zone aware.
        metadata: JSON values, for filters.
    """

    text: str
    conversation_id: str = ""
    speaker: str | None = None
    source: str | None = None
    event_time: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fact:
    """One version of one remembered statement.

    Args:
        id: Stable over versions, unique in the store: ``f`` and lower-case base32, ASCII.
        version: 1 for the first text, one more for each update.
        text: What is remembered.
        namespace: The exact owner.
        conversation_id: Groups facts that followed one another.
        position: Order within the conversation, growing from 0; gaps are allowed.
        created_at: When the first version was stored (UTC).
        updated_at: When this version was stored (UTC).
        event_time: When it happened.
        speaker: Who said it.
        source: Where it comes from.
        metadata: JSON values.
        deleted_at: When it was softly deleted, else ``None``.
    """

    id: str
    version: int
    text: str
    namespace: Namespace
    conversation_id: str
    position: int
    created_at: datetime
    updated_at: datetime
    event_time: datetime | None = None
    speaker: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    deleted_at: datetime | None = None


class FactEventKind(StrEnum):
    """What happened to a fact."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class FactEvent:
    """One entry of a fact's history and of the store's change feed.

    Args:
        seq: Grows by at least one with every change in the store, never reused.
        kind: What happened.
        fact_id: To which fact.
        version: The version that the event produced or removed.
        namespace: The fact's owner.
        at: When (UTC).
        old_text: The text before, ``None`` for ``add`` and after a purge.
        new_text: The text after, ``None`` for ``delete`` and ``purge``.
    """

    seq: int
    kind: FactEventKind
    fact_id: str
    version: int
    namespace: Namespace
    at: datetime
    old_text: str | None = None
    new_text: str | None = None


@dataclass(frozen=True, slots=True)
class FactHandle:
    """A printable, signed reference to one version of one fact.

    Args:
        fact_id: The fact.
        version: The version whose text was meant.
        marker: The text form, e.g. ``[[ifs:f…]]``, safe in prompt templates and JSON.
    """

    fact_id: str
    version: int
    marker: str

    def __str__(self) -> str:
        return self.marker


@dataclass(frozen=True, slots=True)
class ScoredFact:
    """A recalled fact with its score, higher is better.

    Args:
        fact: The fact.
        score: The fused score that ordered the results.
        similarity: Cosine similarity of the dense search, ``None`` if it did not find the fact.
    """

    fact: Fact
    score: float
    similarity: float | None = None


class InjectionStatus(StrEnum):
    """What became of the memory of one request."""

    INJECTED = "injected"
    """Every planned segment was taken from stored KV or the engine's own cache."""
    PARTIAL = "partial"
    """Some segments were injected; the rest was prefilled from text."""
    TEXT = "text"
    """Memory was given as prompt text; nothing was injected."""
    NONE = "none"
    """The request carried no memory."""


@dataclass(frozen=True, slots=True)
class InjectionReport:
    """What happened to the memory of one request.

    Token counts are of the prompt. ``injected + cached + prefilled == prompt_tokens``.

    Args:
        status: See :class:`InjectionStatus`.
        reason: Why not everything was injected; empty when it was.
        prompt_tokens: All tokens of the prompt.
        memory_tokens: Tokens of recalled facts in it.
        injected_tokens: Taken from stored KV, as counted by the server.
        cached_tokens: Found in the engine's own prefix cache.
        prefilled_tokens: Computed.
        fact_ids: The facts in the prompt, in prompt order.
        missing_keys: Segment keys that the server did not have.
        ttft_ms: Time to first token seen by the client, ``None`` when not streamed.
    """

    status: InjectionStatus
    reason: str = ""
    prompt_tokens: int = 0
    memory_tokens: int = 0
    injected_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    fact_ids: tuple[str, ...] = ()
    missing_keys: tuple[str, ...] = ()
    ttft_ms: float | None = None


Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
TokenIds: TypeAlias = Sequence[int]
