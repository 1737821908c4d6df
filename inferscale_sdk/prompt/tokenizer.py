"""A model's tokenizer and chat template on the client."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.prompt.base import ChatTokenizer
from inferscale_sdk.prompt.template import ChatTemplate
from inferscale_sdk.types import Message
from inferscale_sdk.unicode import require_unicode

__all__ = ["TransformersChatTokenizer", "as_mapping"]

_CACHED_TEXTS = 8192
_CACHED_CHARS = 2000
"""Longer texts are not kept: they are histories, which do not come back; facts do."""
_TOKEN_FIELDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True)
class _Files:
    """What a tokenizer's files say: ``tokenizer.json`` as text, templates, named tokens."""

    tokenizer: str
    template: str | dict[str, str]
    variables: dict[str, str]


class TransformersChatTokenizer(ChatTokenizer):
    """Tokenizer and chat template in the Hugging Face format. Safe for several threads.

    A folder with a ``tokenizer.json`` and a chat template is read directly, in a tenth of a
    second; anything else goes through ``transformers.AutoTokenizer``.

    Args:
        path_or_name: A folder, or a model's name for ``AutoTokenizer``.

    Raises:
        MissingDependency: ``tokenizers``, ``jinja2`` or, where needed, ``transformers`` is missing.
        ConfigurationError: No tokenizer there, no fast tokenizer, or no chat template.
    """

    def __init__(self, path_or_name: str | Path) -> None:
        self.source = str(path_or_name)
        files = _read_folder(Path(path_or_name)) or _read_with_transformers(self.source)
        spec = json.loads(files.tokenizer)
        self._raw = _load(spec)
        # What the tokenizer itself puts before a text that is no chat, such as a BOS token.
        start = self._raw.decode(self._raw.encode("").ids, skip_special_tokens=False)
        self._template = ChatTemplate(files.template, {**files.variables, "text_start": start})
        self._control = _control_tokens(spec, self._template.literal_text)
        self._plain = _load_plain(spec, frozenset(self._control))
        # What a vocabulary without bytes makes of unknown characters steers nothing.
        unknown = self._raw.token_to_id(spec["model"].get("unk_token") or "")
        self._control_ids = frozenset(self._control.values()) - {unknown}
        # SentencePiece styles put a space before the first word of a text, which is wrong for a
        # piece from the middle of a prompt.
        self._line_break = self._ids(self._raw, "\n")
        self._adds_space = self._ids(self._raw, "\na") != [
            *self._line_break,
            *self._ids(self._raw, "a"),
        ]
        self._cached = lru_cache(maxsize=_CACHED_TEXTS)(self._encode)

    @property
    def control_tokens(self) -> frozenset[str]:
        """See :attr:`ChatTokenizer.control_tokens`."""
        return frozenset(self._control)

    def encode(self, text: str) -> list[int]:
        """See :meth:`ChatTokenizer.encode`."""
        return list(self._cached(text, False) if self._keeps(text) else self._encode(text, False))

    def encode_plain(self, text: str) -> list[int]:
        """See :meth:`ChatTokenizer.encode_plain`."""
        return list(self._cached(text, True) if self._keeps(text) else self._encode(text, True))

    def decode(self, token_ids: Sequence[int]) -> str:
        """See :meth:`ChatTokenizer.decode`."""
        text: str = self._raw.decode(list(token_ids), skip_special_tokens=True)
        return text

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """See :meth:`ChatTokenizer.render`.

        Raises:
            ConfigurationError: The template refuses this conversation.
        """
        return self._template.render(
            [as_mapping(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            kwargs=template_kwargs,
        )

    @staticmethod
    def _keeps(text: str) -> bool:
        return len(text) <= _CACHED_CHARS

    def _encode(self, text: str, plain: bool) -> array[int]:
        ids = self._piece(self._plain if plain else self._raw, text)
        if plain and not self._control_ids.isdisjoint(ids):
            # A vocabulary that holds control tokens as ordinary words: break them up.
            ids = self._broken_up(text)
        return array("I", ids)

    def _piece(self, tokenizer: Any, text: str) -> list[int]:
        if self._adds_space and not text.startswith(tuple(self._control)):
            ids = self._ids(tokenizer, "\n" + text)
            if ids[: len(self._line_break)] == self._line_break:
                return ids[len(self._line_break) :]
        return self._ids(tokenizer, text)

    def _broken_up(self, text: str) -> list[int]:
        for token in sorted(self._control, key=len, reverse=True):
            text = text.replace(token, token[0] + "\0" + token[1:])
        ids = [i for piece in text.split("\0") for i in self._piece(self._plain, piece)]
        if not self._control_ids.isdisjoint(ids):
            raise ConfigurationError(
                f"the tokenizer {self.source!r} makes control tokens out of plain text; "
                "it cannot be used with text from users"
            )
        return ids

    @staticmethod
    def _ids(tokenizer: Any, text: str) -> list[int]:
        whole = require_unicode(text, "the prompt")
        ids: list[int] = tokenizer.encode(whole, add_special_tokens=False).ids
        return ids


def as_mapping(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates take it: role, content, name if any, and whatever else it has.

    Content given as a list of text parts is joined.

    Raises:
        ConfigurationError: A part of the content is not text.
    """
    if isinstance(message, Message):
        named = {"name": message.name} if message.name else {}
        return {"role": message.role, "content": message.content, **named}
    taken = dict(message)
    if message.get("tool_calls"):
        taken["tool_calls"] = [_template_call(call) for call in message["tool_calls"]]
    content = message.get("content")
    if content is None or isinstance(content, str):
        return taken
    parts = [
        part if isinstance(part, Mapping) else {"type": "text", "text": part} for part in content
    ]
    for part in parts:
        if part.get("type", "text") != "text":
            raise ConfigurationError(
                f"a message has a part of type {part.get('type')!r}; "
                "memory works with text messages, send this conversation without it"
            )
    return {**taken, "content": "".join(str(part.get("text", "")) for part in parts)}


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with its arguments as an object; the chat protocol has them as JSON text."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return dict(call)
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        # What a model made up is passed on as it is.
        parsed = arguments
    if isinstance(parsed, str):
        # Reading it twice must give the same: text inside it may read as JSON once more.
        parsed = arguments
    return {**call, "function": {**function, "arguments": parsed}}


def _read_folder(folder: Path) -> _Files | None:
    """The files of a folder, or ``None`` when they leave anything to interpretation."""
    spec, config_file = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not (spec.is_file() and config_file.is_file()):
        return None
    config = json.loads(config_file.read_text("utf-8"))
    template = _template_of(folder, config)
    text = spec.read_text("utf-8")
    known = {token["content"] for token in json.loads(text).get("added_tokens", [])}
    added = {token["content"] for token in config.get("added_tokens_decoder", {}).values()}
    if template is None or not added <= known:
        return None
    legacy = folder / "special_tokens_map.json"
    named = {**(json.loads(legacy.read_text("utf-8")) if legacy.is_file() else {}), **config}
    variables = {
        f"{field}_token": token["content"] if isinstance(token, dict) else token
        for field in _TOKEN_FIELDS
        if (token := named.get(f"{field}_token")) is not None
    }
    return _Files(text, template, variables)


def _template_of(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    file = folder / "chat_template.jinja"
    more = {
        path.stem: path.read_text("utf-8")
        for path in folder.glob("additional_chat_templates/*.jinja")
    }
    if file.is_file():
        return {"default": file.read_text("utf-8"), **more}
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return template


def _read_with_transformers(name: str) -> _Files:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependency("transformers", "tokenizer", f"loading {name!r}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no tokenizer at {name!r}: {error}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ConfigurationError(f"{name!r} has no fast tokenizer; use a model that has one")
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"{name!r} has no chat template; use the model's instruct variant, or add a "
            "chat_template.jinja beside its tokenizer"
        )
    return _Files(
        tokenizer.backend_tokenizer.to_str(),
        tokenizer.chat_template,
        {key: str(value) for key, value in tokenizer.special_tokens_map.items()},
    )


def _control_tokens(spec: Mapping[str, Any], template_text: str) -> dict[str, int]:
    """Added tokens that steer the model: those declared special, and those the template writes.

    Some models declare their turn markers as ordinary added tokens, so the flag is not enough.
    """
    return {
        token["content"]: token["id"]
        for token in spec.get("added_tokens", [])
        if token["content"].strip()
        and len(token["content"]) > 1
        and (token["special"] or token["content"] in template_text)
    }


def _load(spec: Mapping[str, Any]) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependency("tokenizers", "tokenizer", "tokenising prompts") from error
    # A folder may ask for truncation or padding, meant for training.
    return Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))


def _load_plain(spec: Mapping[str, Any], control: frozenset[str]) -> Any:
    """The same tokenizer, for which control tokens are text like any other."""
    added = [
        {**token, "special": token["content"] in control} for token in spec.get("added_tokens", [])
    ]
    tokenizer = _load({**spec, "added_tokens": added})
    tokenizer.encode_special_tokens = True
    return tokenizer
