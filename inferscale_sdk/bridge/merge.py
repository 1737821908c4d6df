"""Request bodies laid over one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["deep_merge"]


def deep_merge(*bodies: Mapping[str, Any] | None) -> dict[str, Any]:
    """One body out of several; later ones win, objects are merged key by key.

    Frameworks let the ``extra_body`` of a call replace that of the constructor, or the other way
    round. Either would lose half of what was asked for, and with it the cache salt.

    Args:
        bodies: From the least to the most important; ``None`` counts as empty.
    """
    merged: dict[str, Any] = {}
    for body in bodies:
        for key, value in (body or {}).items():
            mine = merged.get(key)
            if isinstance(mine, Mapping) and isinstance(value, Mapping):
                merged[key] = deep_merge(mine, value)
            else:
                merged[key] = value
    return merged
