"""Conditions of LangGraph stores: on values, and on namespaces label by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from langgraph.store.base import MatchCondition

from inferscale_sdk import Fact

__all__ = ["matches", "namespace_matches", "sort_key"]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": eq,
    "$ne": ne,
    "$gt": gt,
    "$gte": ge,
    "$lt": lt,
    "$lte": le,
}


def matches(value: Any, condition: Any) -> bool:
    """Whether a value meets a condition.

    ``{"$gt": 3}`` compares, ``{"a": …}`` looks inside, anything else must be equal. Values that
    cannot be compared do not meet an ordering.

    Raises:
        ValueError: An operator is unknown.
    """
    if not isinstance(condition, Mapping):
        same: bool = value == condition
        return same
    if any(str(name).startswith("$") for name in condition):
        return all(_compare(value, name, other) for name, other in condition.items())
    return isinstance(value, Mapping) and all(
        matches(value.get(name), inner) for name, inner in condition.items()
    )


def _compare(value: Any, name: str, other: Any) -> bool:
    operator = _OPERATORS.get(name)
    if operator is None:
        raise ValueError(f"filter operator {name!r} is unknown; use one of {sorted(_OPERATORS)}")
    try:
        return bool(operator(value, other))
    except TypeError:
        return False


def namespace_matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Whether a namespace begins or ends with the labels of a condition; ``*`` is any one label."""
    path = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(want in ("*", label) for want, label in zip(path, part, strict=False))


def sort_key(fact: Fact) -> tuple[float, str]:
    """Newest first."""
    return (-fact.updated_at.timestamp(), fact.id)
