"""From messages to the facts that are stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from inferscale_sdk.errors import blame
from inferscale_sdk.memory.extraction import Extractor
from inferscale_sdk.memory.turns import MessagesLike, as_turns, split_text, turn_facts
from inferscale_sdk.prompt.handles import strip_handles
from inferscale_sdk.types import NewFact

__all__ = ["new_facts", "without_handles"]

log = logging.getLogger(__name__)


def new_facts(
    messages: MessagesLike,
    *,
    max_chars: int,
    conversation_id: str,
    metadata: Mapping[str, Any] | None,
    timestamp: datetime | None,
    extractor: Extractor | None,
) -> list[NewFact]:
    """The facts to store for ``messages``.

    Args:
        messages: A statement, a turn, or a conversation.
        max_chars: Characters of one fact at most.
        conversation_id: Groups what follows one another.
        metadata: For every fact.
        timestamp: When it was said, for messages that do not say.
        extractor: Finds facts in the turns. If it fails, the turns themselves are the facts.

    Raises:
        ConfigurationError: A message is malformed.
    """
    turns = as_turns(messages, timestamp)
    if extractor is not None and turns:
        try:
            found = list(extractor(turns))
            when = turns[-1].timestamp
            return list(_extracted(found, max_chars, conversation_id, dict(metadata or {}), when))
        except Exception as error:
            log.warning(
                "extracting facts failed (%s); the %d messages themselves are stored",
                blame(error),
                len(turns),
            )
    return list(
        turn_facts(turns, max_chars=max_chars, conversation_id=conversation_id, metadata=metadata)
    )


def without_handles(fact: NewFact) -> NewFact:
    """``fact`` without markers in what the model will read: its text and its speaker."""
    speaker = fact.speaker
    if isinstance(speaker, str) and (clean := strip_handles(speaker)) != speaker:
        speaker = clean.strip() or None
    return replace(fact, text=strip_handles(fact.text), speaker=speaker)


def _extracted(
    found: Sequence[str | NewFact],
    max_chars: int,
    conversation_id: str,
    metadata: dict[str, Any],
    when: datetime | None,
) -> Iterator[NewFact]:
    for item in found:
        fact = NewFact(item, event_time=when) if isinstance(item, str) else item
        fact = without_handles(fact)
        text = fact.text.strip()
        for piece in split_text(text, max_chars) if text else ():
            yield replace(
                fact,
                text=piece,
                conversation_id=fact.conversation_id or conversation_id,
                metadata={**metadata, **fact.metadata},
            )
