"""A tokenizer without weights: one token per UTF-8 byte, plus a few special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.base import ChatTokenizer
from inferscale_sdk.types import Message

__all__ = ["SPECIAL_TOKENS", "FakeTokenizer"]

SPECIAL_TOKENS = ("<|bos|>", "<|start|>", "<|end|>")
"""Written by the chat template; their ids follow the 256 bytes."""

_IDS = {text: 256 + i for i, text in enumerate(SPECIAL_TOKENS)}
_TEXTS = {i: text for text, i in _IDS.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in SPECIAL_TOKENS) + ")")


class FakeTokenizer(ChatTokenizer):
    r"""A :class:`ChatTokenizer` for tests: byte level, invertible, the same in every process.

    Bytes never merge, so a prompt cut anywhere gives the same ids as the whole. The template is
    ``<|bos|>`` and, for each message, ``<|start|>role\ncontent<|end|>\n``.
    """

    @property
    def control_tokens(self) -> frozenset[str]:
        """The special tokens."""
        return frozenset(SPECIAL_TOKENS)

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in ``text`` are recognised."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in _IDS:
                ids.append(_IDS[part])
            else:
                ids.extend(part.encode())
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids; special tokens written in ``text`` stay bytes."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``, special tokens left out."""
        return bytes(i for i in token_ids if i < 256).decode(errors="replace")

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` with special tokens written out: the exact inverse of encode."""
        return b"".join(bytes([i]) if i < 256 else _TEXTS[i].encode() for i in token_ids).decode(
            errors="replace"
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The chat template applied to ``messages``.

        Raises:
            ConfigurationError: A message has no role or no text.
        """
        if "chat_template" in template_kwargs:
            # The one other template in use: text without roles.
            return "\n\n".join(_role_and_content(message)[1] for message in messages)
        out = ["<|bos|>"]
        if tools:
            out.append(f"<|start|>tools\n{json.dumps(list(tools), sort_keys=True)}<|end|>\n")
        for message in messages:
            role, content = _role_and_content(message)
            out.append(f"<|start|>{role}\n{content}<|end|>\n")
        if add_generation_prompt:
            out.append("<|start|>assistant\n")
        return "".join(out)


def _role_and_content(message: Message | Mapping[str, Any]) -> tuple[str, str]:
    if isinstance(message, Message):
        return message.role, message.content
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ConfigurationError(f"a message needs a role and text, got {dict(message)!r}")
    return role, content
