"""Chat templates rendered as transformers renders them, without importing transformers.

Importing ``AutoTokenizer`` takes seconds and brings torch; jinja2 takes milliseconds. The names
and filters that chat templates rely on are few, and tests compare the results with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency

__all__ = ["PLAIN_TEXT", "ChatTemplate"]

PLAIN_TEXT = (
    "{{ text_start }}{% for message in messages %}{{ message.content }}"
    "{% if not loop.last %}\n\n{% endif %}{% endfor %}"
)
"""A template for text completion: no roles, and no turn is opened for the answer."""


class ChatTemplate:
    """One compiled chat template. Safe for several threads.

    Args:
        source: The template's jinja2 text, or ``{name: text}`` with a ``default`` and perhaps a
            ``tool_use`` one.
        variables: What every rendering sees: ``bos_token``, ``eos_token`` and their like.

    Raises:
        MissingDependency: jinja2 is not installed.
        ConfigurationError: The template does not compile.
    """

    def __init__(self, source: str | Mapping[str, str], variables: Mapping[str, str]) -> None:
        named = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in named:
            raise ConfigurationError(
                f"the tokenizer has chat templates {sorted(named)} but no 'default' one"
            )
        self._variables = dict(variables)
        env = _environment()
        self._templates = {name: _compile(env, text) for name, text in named.items()}
        self.literal_text = "\0".join(_literals(env, text) for text in named.values())
        """All text the templates themselves can write, to tell their control tokens by."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> str:
        """The conversation as text; a ``chat_template`` in ``kwargs`` replaces the model's.

        Raises:
            ConfigurationError: The template refuses this conversation; the message is its own.
        """
        from jinja2.exceptions import TemplateError

        kwargs = dict(kwargs)
        own = kwargs.pop("chat_template", None)
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates[name] if own is None else _compile_other(own)
        variables = {
            **self._variables,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        try:
            text: str = template.render(variables)
        except TemplateError as error:
            roles = [message.get("role") for message in messages]
            raise ConfigurationError(
                f"the model's chat template refuses a conversation of {roles}: {error}"
            ) from error
        return text


def _compile(env: Any, text: str) -> Any:
    from jinja2.exceptions import TemplateError

    try:
        return env.from_string(text)
    except TemplateError as error:
        raise ConfigurationError(f"the chat template does not compile: {error}") from error


@lru_cache(maxsize=16)
def _compile_other(text: str) -> Any:
    return _compile(_environment(), text)


def _literals(env: Any, text: str) -> str:
    from jinja2 import nodes

    tree = env.parse(text)
    raw = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(raw + constants)


def _environment() -> Any:
    """The sandbox that templates from a model's folder run in: they are other people's code."""
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingDependency("jinja2", "tokenizer", "rendering chat templates") from error

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[_generation_extension(), loopcontrols],
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


def _generation_extension() -> Any:
    """``{% generation %}`` marks assistant text for training; rendering passes it through."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML, which no chat template wants."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
