"""What memory and memory block share: from a query to what the model is given."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from inferscale_sdk import ConfigurationError, Memory, NamespaceError, ScoredFact
from inferscale_sdk.bridge import Ids

__all__ = [
    "TURN_KEY",
    "InsertMethod",
    "Recall",
    "guarded",
    "last_user_text",
    "turn_digest",
    "with_text",
    "worth_remembering",
]

log = logging.getLogger(__name__)

TURN_KEY = "turn"
"""Metadata of a fact that was a turn: digest of role and text, to know it again."""
TEXT_HEADER = "What is known from earlier conversations:"
_ANSWER = "Answer:"

InsertMethod: TypeAlias = Literal["system", "user"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recall:
    """How facts are recalled.

    Args:
        top_k: How many at most.
        mode: ``handle`` or ``text``.
        filters: Metadata conditions.
        threshold: Least cosine similarity.
    """

    top_k: int
    mode: str
    filters: Mapping[str, Any] | None = None
    threshold: float | None = None
    ids: Ids = field(default_factory=dict)

    def text(self, memory: Memory, query: str, visible: Iterable[ChatMessage] = ()) -> str:
        """Handles, or texts, of the facts that matter for ``query``; empty if there are none.

        Args:
            memory: Where facts are.
            query: What the user said last.
            visible: Messages that the model sees anyway: what was just said is always the most
                similar to itself, and would only be said twice.
        """
        if not query.strip():
            return ""
        seen = {turn_digest(message) for message in visible}
        found = memory.search(
            query,
            top_k=self.top_k + len(seen),
            filters=self.filters,
            threshold=self.threshold,
            **self.ids,
        )
        new = [f for f in found if f.fact.metadata.get(TURN_KEY) not in seen][: self.top_k]
        if not new:
            return ""
        return self._handles(memory, new) if self.mode == "handle" else self._lines(new)

    def _handles(self, memory: Memory, found: Sequence[ScoredFact]) -> str:
        return "\n".join(handle.marker for handle in memory.mint(found))

    def _lines(self, found: Sequence[ScoredFact]) -> str:
        # The best one last: what stands nearest to the question is used best.
        lines = [f"- {scored.fact.text}" for scored in reversed(found)]
        return "\n".join([TEXT_HEADER, *lines])


def guarded(what: str, on_error: str, work: Callable[[], T], default: T) -> T:
    """The result of ``work``; a failure of memory does not make the chat fail.

    Mistakes in the call or the set-up do: they must not hide behind a worse answer.
    """
    try:
        return work()
    except (ConfigurationError, NamespaceError):
        raise
    except Exception as error:
        if on_error == "raise":
            raise
        # The error's own text may quote facts.
        log.warning("%s: %s", what, type(error).__name__)
        return default


def last_user_text(messages: Iterable[ChatMessage]) -> str:
    """What the user said last; engines and agents ask for memory without saying it."""
    for message in reversed(list(messages)):
        if message.role == MessageRole.USER and (message.content or "").strip():
            return message.content or ""
    return ""


def turn_digest(message: ChatMessage) -> str:
    """What a turn is known by: who said what."""
    said = f"{message.role.value}\0{_said(message)}"
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def worth_remembering(message: ChatMessage, roles: Sequence[str]) -> dict[str, str] | None:
    """A message as a turn to remember; ``None`` for one that says nothing."""
    said = _said(message)
    if message.role.value not in roles or not said:
        return None
    return {"role": message.role.value, "content": said}


def _said(message: ChatMessage) -> str:
    """The text of a message; of an agent's reasoning, its conclusion."""
    text = (message.content or "").strip()
    if message.role == MessageRole.ASSISTANT and text.startswith("Thought:"):
        return text.rpartition(_ANSWER)[2].strip() if _ANSWER in text else ""
    return text


def with_text(message: ChatMessage, text: str) -> ChatMessage:
    """A copy of ``message`` with ``text`` on lines of its own before it."""
    blocks = list(message.blocks)
    for i, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            blocks[i] = TextBlock(text=f"{text}\n{block.text}")
            break
    else:
        blocks.insert(0, TextBlock(text=text))
    return message.model_copy(update={"blocks": blocks})
