"""Whose memory a call is about: constructor, call, run configuration and agent context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from langchain_core.runnables.config import var_child_runnable_config

from inferscale_sdk import NamespaceError

__all__ = ["ID_NAMES", "Ids", "config_ids", "merge_ids", "object_ids", "run_ids"]

Ids: TypeAlias = dict[str, Any]
"""Some of ``user_id``, ``agent_id``, ``run_id``, ``app_id``."""

ID_NAMES = ("user_id", "agent_id", "run_id", "app_id")


def merge_ids(*sources: Mapping[str, Any] | None) -> Ids:
    """The ids of all sources together.

    Raises:
        NamespaceError: Two sources name different ids of one kind. Which of them is meant cannot
            be known, and a wrong guess would show one user another's memory.
    """
    merged: Ids = {}
    for source in sources:
        for name in ID_NAMES:
            value = (source or {}).get(name)
            if value is None:
                continue
            if merged.setdefault(name, value) != value:
                raise NamespaceError(
                    f"{name} is {merged[name]!r} in one place and {value!r} in another; leave it "
                    "out of the constructor to serve several, or name the same one"
                )
    return merged


def object_ids(owner: object) -> Ids:
    """The ids in an object's attributes or, if it is a mapping, under its keys."""
    if isinstance(owner, Mapping):
        return {name: owner[name] for name in ID_NAMES if owner.get(name) is not None}
    values = {name: getattr(owner, name, None) for name in ID_NAMES}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def config_ids(config: Mapping[str, Any] | None) -> Ids:
    """The ids in a run configuration's ``configurable``.

    ``langgraph_user_id``, which LangMem's users know, counts where there is no ``user_id``.
    """
    configurable = (config or {}).get("configurable") or {}
    ids = object_ids(configurable)
    if "user_id" not in ids and configurable.get("langgraph_user_id") is not None:
        ids["user_id"] = configurable["langgraph_user_id"]
    return ids


def run_ids() -> Ids:
    """The ids of the run that is going on in this context: configuration and agent context."""
    config = var_child_runnable_config.get() or {}
    return merge_ids(config_ids(config), _context_ids(config))


def _context_ids(config: Mapping[str, Any]) -> Ids:
    """The ids in the context object an agent was invoked with."""
    runtime = (config.get("configurable") or {}).get("__pregel_runtime")
    return object_ids(getattr(runtime, "context", None) or {})
