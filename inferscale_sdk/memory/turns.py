"""Messages in, facts out: one fact per turn, long turns cut at the ends of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import uuid4

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.handles import strip_handles
from inferscale_sdk.prompt.strings import map_message
from inferscale_sdk.types import Message, NewFact
from inferscale_sdk.unicode import require_unicode

__all__ = ["ChatMessage", "MessagesLike", "as_chat", "as_turns", "last_user_text", "split_text"]

ChatMessage: TypeAlias = "Message | Mapping[str, Any]"
MessagesLike: TypeAlias = "str | ChatMessage | Sequence[str | ChatMessage]"

_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+|\n+")


def as_chat(messages: MessagesLike) -> list[ChatMessage]:
    """The conversation as a list; a string is a user's turn, content parts become text.

    Fact handles are taken out of every string, names and the arguments of tool calls included: what
    they stand for is planned apart, and one that a user typed must not reach the model.

    Raises:
        ConfigurationError: A message has no role, its content is not text, or a string in it is no
            Unicode text.
    """
    return [_chat_message(item) for item in _items(messages)]


def _read(text: str) -> str:
    """A string of a message as the model may have it."""
    return strip_handles(require_unicode(text, "a message"))


def _items(messages: MessagesLike) -> list[Any]:
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        return list(messages)
    return [messages]


def _chat_message(item: str | ChatMessage) -> ChatMessage:
    if isinstance(item, str):
        return Message("user", _read(item))
    if isinstance(item, Message):
        content = _read(_text_of(item.content))
        turn = Message(_read(item.role), content, _name(item.name), item.timestamp)
        return item if turn == item else turn
    if not isinstance(item, Mapping):
        raise ConfigurationError(
            f"a message is a string, a Message or a mapping, got {type(item).__name__}"
        )
    if not isinstance(item.get("role"), str):
        raise ConfigurationError(
            f"a message needs a role (system, user, assistant, tool), got keys {list(item)}"
        )
    content = _read(_text_of(item.get("content")))
    # Set once more, because a key that lost a handle may have become one of these.
    clean = {**map_message(item, _read), "role": _read(item["role"])}
    clean["content"] = content
    if "name" in item and (name := _name(item["name"])) != item["name"]:
        clean["name"] = name
        if name is None:
            del clean["name"]
    return clean


def _name(name: Any) -> Any:
    """A name without handles; ``None`` if it was nothing else."""
    if not isinstance(name, str) or (clean := _read(name)) == name:
        return name
    return clean.strip() or None


def _text_of(content: Any) -> str:
    """Text of a message's content: a string, nothing, or a list of parts as OpenAI has them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part if isinstance(part, str) else _part_text(part) for part in content]
        return "\n".join(part for part in parts if part)
    raise ConfigurationError(f"message content must be text, got {type(content).__name__}")


def _part_text(part: Any) -> str:
    if not isinstance(part, Mapping):
        raise ConfigurationError(f"a content part must be a mapping, got {type(part).__name__}")
    text = part.get("text")
    return text if isinstance(text, str) else ""


def last_user_text(messages: Sequence[ChatMessage]) -> str:
    """What the user asked last; empty if nobody asked."""
    for message in reversed(messages):
        role, content = _role_and_content(message)
        if role == "user" and content.strip():
            return content
    return ""


def _role_and_content(message: ChatMessage) -> tuple[str, str]:
    if isinstance(message, Message):
        return message.role, message.content
    return message["role"], message["content"]


def as_turns(messages: MessagesLike, timestamp: datetime | None = None) -> list[Message]:
    """What of a conversation is worth remembering: no system texts, no empty turns.

    Args:
        messages: As for :func:`as_chat`, but a string is a statement that nobody speaks.
        timestamp: When it was said, for messages that do not say.

    Raises:
        ConfigurationError: As for :func:`as_chat`, or a timestamp is not a time.
    """
    items = _items(messages)
    chat = as_chat([Message("", item) if isinstance(item, str) else item for item in items])
    turns = []
    for message in chat:
        role, content = _role_and_content(message)
        if role == "system" or not content.strip():
            continue
        name = message.name if isinstance(message, Message) else message.get("name")
        when = message.timestamp if isinstance(message, Message) else message.get("timestamp")
        turns.append(Message(role, content.strip(), name, _time(when) or timestamp))
    return turns


def _time(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise ConfigurationError(
        f"timestamp={value!r} is neither a datetime nor a text in ISO 8601 form"
    )


def turn_facts(
    turns: Sequence[Message],
    *,
    max_chars: int,
    conversation_id: str,
    metadata: Mapping[str, Any] | None,
) -> Iterator[NewFact]:
    """One fact per turn; the pieces of a long turn share one ``source``."""
    for turn in turns:
        pieces = split_text(turn.content, max_chars)
        source = f"turn-{uuid4().hex[:12]}" if len(pieces) > 1 else None
        for piece in pieces:
            yield NewFact(
                text=piece,
                conversation_id=conversation_id,
                speaker=turn.name or turn.role or None,
                source=source,
                event_time=turn.timestamp,
                metadata=dict(metadata or {}),
            )


def split_text(text: str, max_chars: int) -> list[str]:
    """Cut ``text`` at the ends of sentences into pieces of at most ``max_chars`` characters.

    A longer sentence is cut between words, a longer word where it must be. Nothing is lost but
    white space at the cuts.
    """
    pieces: list[list[str]] = []
    room = 0
    for sentence in _sentences(text):
        for part in _chop(sentence, max_chars):
            if pieces and len(part) < room:
                pieces[-1].append(part)
                room -= 1 + len(part)
            else:
                pieces.append([part])
                room = max_chars - len(part)
    if len(pieces) == 1:
        return [text.strip()]
    return [" ".join(parts) for parts in pieces]


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for match in _SENTENCE_END.finditer(text):
        # Closing quotes belong to the sentence they close.
        stop = match.end() - (len(match[0]) - len(match[0].rstrip()))
        if sentence := text[start:stop].strip():
            yield sentence
        start = match.end()
    if sentence := text[start:].strip():
        yield sentence


def _chop(sentence: str, max_chars: int) -> Iterator[str]:
    start = 0
    while len(sentence) - start > max_chars:
        cut = sentence.rfind(" ", start + 1, start + max_chars + 1)
        cut = cut if cut > 0 else start + max_chars
        yield sentence[start:cut].strip()
        # A sentence ends in no space, so there is more.
        while sentence[cut].isspace():
            cut += 1
        start = cut
    if start < len(sentence):
        yield sentence[start:]
