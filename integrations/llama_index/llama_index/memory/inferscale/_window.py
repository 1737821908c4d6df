"""The messages of a session that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole

__all__ = ["recent"]


def recent(
    messages: Sequence[ChatMessage], token_limit: int, count: Callable[[str], Sequence[Any]]
) -> list[ChatMessage]:
    """The newest messages of at most ``token_limit`` tokens, from a user's turn on.

    System messages stay. A turn is kept or left out whole, so that no tool's answer stands without
    its call. The last turn is kept whatever its length: that it is too long is the server's to say.

    Args:
        messages: The session, oldest first.
        token_limit: Tokens at most.
        count: Splits a text into tokens.
    """
    system = [message for message in messages if message.role == MessageRole.SYSTEM]
    turns: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == MessageRole.SYSTEM:
            continue
        if message.role == MessageRole.USER or not turns:
            turns.append([])
        turns[-1].append(message)
    left = token_limit - _tokens(system, count)
    kept: list[list[ChatMessage]] = []
    for turn in reversed(turns):
        left -= _tokens(turn, count)
        if left < 0 and kept:
            break
        kept.append(turn)
    return [*system, *(message for turn in reversed(kept) for message in turn)]


def _tokens(messages: Sequence[ChatMessage], count: Callable[[str], Sequence[Any]]) -> int:
    return sum(len(count(str(message.content or ""))) for message in messages)
