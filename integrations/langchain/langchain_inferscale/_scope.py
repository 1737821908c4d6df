"""Whose memory a call is about: constructor, call, run configuration and agent context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from inferscale_sdk.bridge import ID_NAMES, Ids, merge_ids, object_ids

__all__ = ["ID_NAMES", "Ids", "config_ids", "merge_ids", "object_ids", "run_ids"]


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
