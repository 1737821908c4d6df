"""Every string of a message or a tool: what people write may stand in any of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.unicode import require_unicode

__all__ = ["map_message", "map_strings", "map_tool", "require_strings"]

Change: TypeAlias = Callable[[str], str]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_MESSAGE_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning_content"}
)
_CALL_KEYS = frozenset({"id", "type", "index", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments", "description", "parameters", "strict"})


def map_strings(value: Any, change: Change) -> Any:
    """``value`` with ``change`` applied to every string in it, keys included, at any depth."""
    try:
        return _map(value, change)
    except RecursionError:
        raise ConfigurationError(
            "a message or tool is nested too deeply; send its inner part as text"
        ) from None


def require_strings(value: Any, what: str) -> None:
    """Refuse what holds a string, at any depth, that is not Unicode text.

    Raises:
        ConfigurationError: It does, or is nested too deeply.
    """
    map_strings(value, lambda text: require_unicode(text, what))


def map_message(message: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """A message with ``change`` applied to all that people or models write in it.

    What the chat protocol itself says stays: a known role, the type ``function`` of a tool call,
    and the names of the fields they stand in. The same words anywhere deeper are text like any
    other. Arguments given as JSON text are changed as what they read as, escapes undone.

    Raises:
        ConfigurationError: It is nested too deeply.
    """
    clean = _fields(message, _MESSAGE_KEYS, change)
    if message.get("role") in _ROLES:
        clean["role"] = message["role"]
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if isinstance(calls, list | tuple):
        clean["tool_calls"] = [_call(call, change) for call in calls]
    if isinstance(legacy, Mapping):
        clean["function_call"] = _function(legacy, change)
    return clean


def map_tool(tool: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """A tool's schema, likewise.

    Raises:
        ConfigurationError: It is nested too deeply.
    """
    clean: dict[str, Any] = _call(tool, change)
    return clean


def _map(value: Any, change: Change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map(key, change): _map(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map(item, change) for item in value]
    return value


def _fields(value: Mapping[str, Any], known: frozenset[str], change: Change) -> dict[str, Any]:
    return {
        key if key in known else map_strings(key, change): map_strings(item, change)
        for key, item in value.items()
    }


def _call(call: Any, change: Change) -> Any:
    if not isinstance(call, Mapping):
        return map_strings(call, change)
    clean = _fields(call, _CALL_KEYS, change)
    if call.get("type") == "function":
        clean["type"] = "function"
    if isinstance(call.get("function"), Mapping):
        clean["function"] = _function(call["function"], change)
    return clean


def _function(function: Mapping[str, Any], change: Change) -> dict[str, Any]:
    clean = _fields(function, _FUNCTION_KEYS, change)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        clean["arguments"] = _json_text(arguments, change)
    return clean


def _json_text(text: str, change: Change) -> str:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return change(text)
    changed = map_strings(read, change)
    return text if changed == read else json.dumps(changed, ensure_ascii=False)
