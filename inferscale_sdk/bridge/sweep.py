"""Handles out of messages, wherever a framework has put them.

Retrieval chains format them into system or user messages, tools return them, classic memory puts
them into a history string, agents keep them in tool messages of earlier turns. All of them are
taken out; which of them count is decided afterwards, by signature and namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.prompt.handles import strip_handles
from inferscale_sdk.prompt.strings import require_strings
from inferscale_sdk.types import Message
from inferscale_sdk.unicode import require_unicode

__all__ = ["TOOL_PLACEHOLDER", "Swept", "has_markers", "sweep", "sweep_text"]

TOOL_PLACEHOLDER = "What was found is in your notes."
"""Stands where a tool's result was nothing but handles: the model's call must be answered."""

_OPENING = "[[ifs:"
# The same forms as ``strip_handles`` takes out, well formed or not.
_LOOKS_LIKE = re.compile(r"\[\[ifs:[^\[\]\s]{0,256}\]\]")
_WORD = re.compile(r"\w")
_NO_TEXT = frozenset({"role", "type", "id", "tool_call_id"})


@dataclass(frozen=True, slots=True)
class Swept:
    """A conversation without handles.

    Args:
        messages: The messages that are left, as the chat protocol has them.
        markers: Every marker that was taken out, each once; those of the last message first, in
            the order of their mention within a message. Not yet known to be genuine.
    """

    messages: tuple[dict[str, Any], ...]
    markers: tuple[str, ...]


def has_markers(value: Any) -> bool:
    """Whether any string in ``value`` holds something that looks like a handle."""
    return any(_OPENING in text for text in _strings(value))


def sweep_text(text: str) -> tuple[str, tuple[str, ...]]:
    """``text`` without markers, and the markers, each once, in the order of their mention.

    Raises:
        ConfigurationError: It is not Unicode text.
    """
    require_unicode(text, "the prompt")
    return strip_handles(text), tuple(dict.fromkeys(_LOOKS_LIKE.findall(text)))


def sweep(messages: Sequence[Message | Mapping[str, Any]]) -> Swept:
    """Take every marker out of ``messages``.

    A system, assistant or user message that held nothing else goes; the answer to a tool call
    keeps its place with :data:`TOOL_PLACEHOLDER`; the last user message stays, if need be empty.

    Args:
        messages: OpenAI-style messages; content may be text, a list of parts, or absent.

    Raises:
        ConfigurationError: A string in a message is not Unicode text.
    """
    plain = [_as_dict(message) for message in messages]
    require_strings(plain, "a message")
    markers: dict[str, None] = {}
    for message in reversed(plain):
        for text in _strings(message):
            markers.update(dict.fromkeys(_LOOKS_LIKE.findall(text)))
    last_user = max((i for i, m in enumerate(plain) if m.get("role") == "user"), default=-1)
    kept: list[dict[str, Any]] = []
    for i, message in enumerate(plain):
        if not has_markers(message):
            kept.append(message)
            continue
        clean = _without_markers(message)
        if _says_something(clean) or i == last_user:
            kept.append(clean)
        elif message.get("role") == "tool":
            kept.append({**clean, "content": TOOL_PLACEHOLDER})
    return Swept(tuple(kept), tuple(markers))


def _as_dict(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message, Message):
        named = {"name": message.name} if message.name else {}
        return {"role": message.role, "content": message.content, **named}
    return dict(message)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _without_markers(value: Any) -> Any:
    if isinstance(value, str):
        return strip_handles(value)
    if isinstance(value, Mapping):
        return {k: v if k in _NO_TEXT else _without_markers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        # A part of nothing but handles goes; servers refuse empty ones.
        parts = [(item, _without_markers(item)) for item in value]
        return [clean for item, clean in parts if clean == item or not _is_blank_part(clean)]
    return value


def _is_blank_part(part: Any) -> bool:
    if isinstance(part, str):
        return not _WORD.search(part)
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and not _WORD.search(str(part.get("text") or ""))
    )


def _says_something(message: Mapping[str, Any]) -> bool:
    if message.get("tool_calls") or message.get("function_call"):
        return True
    content = message.get("content")
    if isinstance(content, str):
        # What is left of a JSON list of handles is brackets and commas.
        return bool(_WORD.search(content))
    return bool(content)
