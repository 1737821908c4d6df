"""The chat template rendered once and cut where the memory stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.base import ChatTokenizer
from inferscale_sdk.prompt.frame import Frame
from inferscale_sdk.prompt.strings import map_message, map_strings, map_tool
from inferscale_sdk.prompt.tokenizer import as_mapping
from inferscale_sdk.types import Message

__all__ = [
    "CutPrompt",
    "as_mappings",
    "cut_prompt",
    "defuse",
    "defuse_message",
    "place_memory",
    "whole_prompt",
]

_ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True, slots=True)
class CutPrompt:
    """Token ids before and after the facts.

    Args:
        before: Chat template start, system text and the frame's header, from position 0.
        after: Footer, history, question and the answer's opening.
        in_system: Whether the memory stands in the system message, or in the first user message
            because the template takes no system message.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    in_system: bool


class _Stencil:
    """Stands words no conversation contains in for the memory and for forged control tokens."""

    def __init__(self, tokenizer: ChatTokenizer, request: object) -> None:
        self._tokenizer = tokenizer
        text = json.dumps(request, ensure_ascii=False, default=str)
        n = 0
        while f"IFSX{n}X" in text:
            n += 1
        self.memory = f"IFSX{n}XMEMORYX"
        ordered = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._stand_ins = {token: f"IFSX{n}XC{i}X" for i, token in enumerate(ordered)}
        self._real = {word: token for token, word in self._stand_ins.items()}
        self._tokens = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._words = re.compile(f"(IFSX{n}XC[0-9]+X)")

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """``messages`` in which every control token that somebody wrote is replaced."""
        return [map_message(message, self._clean) for message in messages]

    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
        """The same for tools."""
        return None if tools is None else [map_tool(tool, self._clean) for tool in tools]

    def variables(self, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a template's variables, documents among them.

        A template of the caller's own, and tokens it names, are no text of a conversation.
        """
        return {
            name: value
            if name == "chat_template" or name.endswith("_token")
            else map_strings(value, self._clean)
            for name, value in template_kwargs.items()
        }

    def _clean(self, text: str) -> str:
        return self._tokens.sub(lambda match: self._stand_ins[match[0]], text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text.

        Without stand-ins it is one piece, as usual; with them, the control tokens people wrote
        become plain text and the template's own stay what they are.
        """
        ids: list[int] = []
        for i, piece in enumerate(self._words.split(text)):
            if i % 2:
                ids += self._tokenizer.encode_plain(self._real[piece])
            elif piece:
                ids += self._tokenizer.encode(piece)
        return tuple(ids)


def whole_prompt(
    tokenizer: ChatTokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any],
) -> tuple[int, ...]:
    """Token ids of a conversation without memory."""
    stencil = _Stencil(tokenizer, [list(messages), tools, template_kwargs])
    text = tokenizer.render(
        stencil.messages(messages),
        tools=stencil.tools(tools),
        **stencil.variables(template_kwargs),
    )
    return stencil.encode(text)


def cut_prompt(
    tokenizer: ChatTokenizer,
    frame: Frame,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any],
) -> CutPrompt:
    """Token ids before and after the memory.

    Raises:
        ConfigurationError: The template refuses the conversation with the memory in the system
            message and in the first user message.
    """
    stencil = _Stencil(tokenizer, [list(messages), tools, template_kwargs])
    clean, clean_tools = stencil.messages(messages), stencil.tools(tools)
    variables = stencil.variables(template_kwargs)
    refusal: ConfigurationError | None = None
    for in_system in (True, False):
        placed = place_memory(frame, clean, stencil.memory, in_system=in_system)
        try:
            text = tokenizer.render(placed, tools=clean_tools, **variables)
        except ConfigurationError as error:
            refusal = refusal or error
            continue
        if text.count(stencil.memory) == 1:
            before, after = text.split(stencil.memory)
            return CutPrompt(stencil.encode(before), stencil.encode(after), in_system)
    raise refusal or ConfigurationError(
        "the model's chat template drops or repeats both the system and the first user message, "
        "so memory has no place in it; use another model or another template"
    )


def place_memory(
    frame: Frame, messages: Sequence[Mapping[str, Any]], facts: str, *, in_system: bool
) -> list[dict[str, Any]]:
    """The conversation with header, ``facts`` and footer in its system message.

    For templates without one they stand at the start of the first user message, behind the
    system texts.
    """
    block = frame.header + facts + frame.footer
    systems = [str(m.get("content") or "") for m in messages if m.get("role") == "system"]
    if not systems and frame.system:
        systems = [frame.system]
    if in_system:
        first = messages[0] if messages and messages[0].get("role") == "system" else None
        text = str(first.get("content") or "") if first else (frame.system or "")
        head = {**(first or {"role": "system"}), "content": _join(text, block.rstrip("\n"))}
        return [head, *(dict(m) for m in (messages[1:] if first else messages))]
    rest = [dict(m) for m in messages if m.get("role") != "system"]
    at = next((i for i, m in enumerate(rest) if m.get("role") == "user"), None)
    if at is None:
        rest.insert(0, {"role": "user", "content": ""})
        at = 0
    question = str(rest[at].get("content") or "")
    rest[at]["content"] = _join(*systems, block + "\n" + question if question else block)
    return rest


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def defuse(text: str, tokenizer: ChatTokenizer) -> str:
    """``text`` in which no control token can be read, for servers that tokenise it themselves."""
    for token in sorted(tokenizer.control_tokens, key=len, reverse=True):
        text = text.replace(token, token[0] + _ZERO_WIDTH_SPACE + token[1:])
    return text


def defuse_message(message: Mapping[str, Any], tokenizer: ChatTokenizer) -> dict[str, Any]:
    """A message in which no control token can be read, in none of its fields."""
    return map_message(message, lambda text: defuse(text, tokenizer))


def as_mappings(messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every message as chat templates take it."""
    return [as_mapping(message) for message in messages]
