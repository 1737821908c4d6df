"""Pieces of SQL with their parameters. User input is only ever a parameter, never SQL text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from inferscale_sdk.errors import ConfigurationError, NamespaceError
from inferscale_sdk.sqlite.times import to_us
from inferscale_sdk.types import Namespace
from inferscale_sdk.unicode import require_unicode

__all__ = [
    "Clause",
    "all_of",
    "check_count",
    "check_owner",
    "owner_values",
    "scope_clause",
    "time_clause",
]

_LARGEST = 2**63 - 1
# The index to drive a query from: what narrows most comes first.
_DRIVERS = ("user_id", "run_id", "agent_id", "app_id")


@dataclass(frozen=True, slots=True)
class Clause:
    """A condition. ``sql`` has one ``?`` for each of ``params``."""

    sql: str
    params: tuple[Any, ...] = ()


def all_of(clauses: Iterable[Clause]) -> Clause:
    """All of them hold; true for none."""
    parts = list(clauses)
    if not parts:
        return Clause("1")
    return Clause(
        " AND ".join(f"({part.sql})" for part in parts),
        tuple(value for part in parts for value in part.params),
    )


def check_owner(namespace: Namespace, what: str) -> None:
    """Refuse a namespace that names nobody, or whose ids cannot be stored.

    Raises:
        NamespaceError: See above.
    """
    if not isinstance(namespace, Namespace):
        raise NamespaceError(
            f"{what} is a {type(namespace).__name__}; pass inferscale_sdk.Namespace(user_id=…)"
        )
    if namespace.is_empty:
        raise NamespaceError(
            f"{what} names nobody; give at least one of user_id, agent_id, run_id, app_id"
        )
    for field in fields(namespace):
        require_unicode(getattr(namespace, field.name) or "", field.name, NamespaceError)


def owner_values(owner: Namespace) -> tuple[str | None, ...]:
    """Values of the columns ``app_id, user_id, agent_id, run_id``."""
    return owner.app_id, owner.user_id, owner.agent_id, owner.run_id


def scope_clause(scope: Namespace, table: str) -> Clause:
    """Rows of ``table`` whose owner the scope covers.

    Args:
        scope: Must name somebody.
        table: A table or alias with the four owner columns; never user input.

    Raises:
        NamespaceError: The scope is empty.
    """
    check_owner(scope, "scope")
    parts: list[Clause] = []
    for column in _DRIVERS:
        value = getattr(scope, column)
        if value is not None:
            # A unary plus keeps SQLite from choosing this column's index: one agent or app may
            # own nearly every row, while the column that stands first narrows best.
            plus = "+" if parts else ""
            parts.append(Clause(f"{plus}{table}.{column} = ?", (value,)))
    return all_of(parts)


def time_clause(column: str, since: datetime | None, until: datetime | None) -> Clause:
    """``since <= column < until``, open where a bound is ``None``.

    Raises:
        ConfigurationError: A bound is naive.
    """
    parts = []
    if since is not None:
        parts.append(Clause(f"{column} >= ?", (to_us(since, "since"),)))
    if until is not None:
        parts.append(Clause(f"{column} < ?", (to_us(until, "until"),)))
    return all_of(parts)


def check_count(value: int, what: str, *, least: int = 0) -> int:
    """A count given by a caller.

    Raises:
        ConfigurationError: It is not a whole number, below ``least``, or more than SQLite counts.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= _LARGEST:
        raise ConfigurationError(
            f"{what}={value!r}; give a whole number from {least} to {_LARGEST}"
        )
    return value
