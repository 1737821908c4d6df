"""Reading facts, events and order. Every function runs in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from inferscale_sdk.errors import NotFoundError, StoreFull
from inferscale_sdk.facts.rows import EVENT_COLUMNS, FACT_COLUMNS, as_ids, load_event, load_fact
from inferscale_sdk.sqlite.clauses import (
    Clause,
    all_of,
    check_count,
    owner_values,
    scope_clause,
    time_clause,
)
from inferscale_sdk.sqlite.filters import filter_clause
from inferscale_sdk.types import Fact, FactEvent, Namespace

__all__ = [
    "changes",
    "check_room",
    "count",
    "find",
    "get",
    "get_many",
    "history",
    "last_seq",
    "locate",
    "namespaces",
    "preceding",
]

_WHAT_THERE_IS = "'inferscale memory list' and get_all() show what there is"
_LIVE = Clause("fact.deleted_us IS NULL")


def locate(
    connection: sqlite3.Connection, fact_id: str, scope: Namespace, *, include_deleted: bool
) -> tuple[int, Fact]:
    """Row number and current version.

    Raises:
        NotFoundError: No such fact in this scope, or it is deleted.
    """
    where = all_of([Clause("fact.id = ?", (_id(fact_id),)), scope_clause(scope, "+fact")])
    row = connection.execute(
        f"SELECT {FACT_COLUMNS}, fact.pk FROM fact WHERE {where.sql}",  # noqa: S608
        where.params,
    ).fetchone()
    if row is None:
        raise NotFoundError(f"there is no fact {fact_id!r} of {scope}; {_WHAT_THERE_IS}")
    fact = load_fact(row[:-1])
    if fact.deleted_at is not None and not include_deleted:
        raise NotFoundError(
            f"fact {fact_id!r} of {scope} was deleted at {fact.deleted_at.isoformat()}; "
            "its history is still there"
        )
    return row[-1], fact


def get(
    connection: sqlite3.Connection, fact_id: str, scope: Namespace, include_deleted: bool
) -> Fact:
    """See ``FactStore.get``."""
    return locate(connection, fact_id, scope, include_deleted=include_deleted)[1]


def get_many(
    connection: sqlite3.Connection, fact_ids: Sequence[str], scope: Namespace | None
) -> list[Fact]:
    """Live facts in the order asked for; ``scope=None`` sees all (change feed and encoder)."""
    where = all_of([_LIVE, *([] if scope is None else [scope_clause(scope, "+fact")])])
    rows = connection.execute(
        # CROSS JOIN fixes the order of the loops: one look-up for each id asked for.
        f"SELECT {FACT_COLUMNS} FROM json_each(?) AS wanted"  # noqa: S608
        f" CROSS JOIN fact ON fact.id = wanted.value WHERE {where.sql} ORDER BY wanted.key",
        (as_ids(fact_ids), *where.params),
    )
    return [load_fact(row) for row in rows]


def find(
    connection: sqlite3.Connection,
    scope: Namespace,
    *,
    filters: Mapping[str, Any] | None,
    conversation_id: str | None,
    since: datetime | None,
    until: datetime | None,
    include_deleted: bool,
    limit: int | None,
    offset: int,
) -> list[Fact]:
    """See ``FactStore.find``."""
    clauses = [
        scope_clause(scope, "fact"),
        time_clause("coalesce(fact.event_us, fact.created_us)", since, until),
        filter_clause(filters, "fact.metadata"),
    ]
    if not include_deleted:
        clauses.append(_LIVE)
    if conversation_id is not None:
        clauses.append(Clause("fact.conversation_id = ?", (conversation_id,)))
    where = all_of(clauses)
    page = (-1 if limit is None else check_count(limit, "limit"), check_count(offset, "offset"))
    rows = connection.execute(
        f"SELECT {FACT_COLUMNS} FROM fact WHERE {where.sql}"  # noqa: S608
        " ORDER BY fact.created_us, fact.position, fact.pk LIMIT ? OFFSET ?",
        (*where.params, *page),
    )
    return [load_fact(row) for row in rows]


def count(connection: sqlite3.Connection, scope: Namespace) -> int:
    """See ``FactStore.count``."""
    where = all_of([scope_clause(scope, "fact"), _LIVE])
    row = connection.execute(f"SELECT count(*) FROM fact WHERE {where.sql}", where.params)  # noqa: S608
    return int(row.fetchone()[0])


def check_room(connection: sqlite3.Connection, owner: Namespace, n_new: int, most: int) -> None:
    """Refuse facts that would not fit into the owner's partition.

    Raises:
        StoreFull: It would hold more than ``most`` live facts.
    """
    there = connection.execute(
        f"SELECT count(*) FROM fact WHERE partition = ? AND {_LIVE.sql}",  # noqa: S608
        (owner.partition,),
    ).fetchone()[0]
    if there + n_new > most:
        raise StoreFull(
            f"{there} facts are remembered for {_sharing(owner)} and {n_new} more would pass the "
            f"limit of {most}; forget some, or raise max_facts"
        )


def _sharing(owner: Namespace) -> Namespace:
    """The ids that make the owner's partition, see ``Namespace.partition``."""
    kinds = ("user_id", "agent_id", "run_id")
    first = next((kind for kind in kinds if getattr(owner, kind) is not None), "app_id")
    return Namespace(**{"app_id": owner.app_id, first: getattr(owner, first)})


def history(connection: sqlite3.Connection, fact_id: str, scope: Namespace) -> list[FactEvent]:
    """See ``FactStore.history``."""
    where = all_of([Clause("event.fact_id = ?", (_id(fact_id),)), scope_clause(scope, "+event")])
    rows = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM event WHERE {where.sql} ORDER BY seq",  # noqa: S608
        where.params,
    ).fetchall()
    if not rows:
        raise NotFoundError(f"there never was a fact {fact_id!r} of {scope}; {_WHAT_THERE_IS}")
    return [load_event(row) for row in rows]


def preceding(connection: sqlite3.Connection, fact: Fact, n: int) -> list[Fact]:
    """See ``FactStore.preceding``."""
    rows = connection.execute(
        f"SELECT {FACT_COLUMNS} FROM fact"  # noqa: S608
        " WHERE partition = ? AND conversation_id = ? AND position < ? AND deleted_us IS NULL"
        " AND app_id IS ? AND user_id IS ? AND agent_id IS ? AND run_id IS ?"
        " ORDER BY position DESC LIMIT ?",
        (
            fact.namespace.partition,
            fact.conversation_id,
            fact.position,
            *owner_values(fact.namespace),
            check_count(n, "n"),
        ),
    )
    return [load_fact(row) for row in rows][::-1]


def namespaces(connection: sqlite3.Connection) -> list[Namespace]:
    """See ``FactStore.namespaces``."""
    rows = connection.execute(
        "SELECT DISTINCT app_id, user_id, agent_id, run_id FROM fact WHERE deleted_us IS NULL"
        " ORDER BY 1, 2, 3, 4"
    )
    return [Namespace(app_id=a, user_id=u, agent_id=g, run_id=r) for a, u, g, r in rows]


def last_seq(connection: sqlite3.Connection) -> int:
    """See ``FactStore.last_seq``."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])


def changes(connection: sqlite3.Connection, after_seq: int, limit: int) -> list[FactEvent]:
    """See ``FactStore.changes``."""
    rows = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM event WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (after_seq, check_count(limit, "limit")),
    )
    return [load_event(row) for row in rows]


def _id(fact_id: str) -> str:
    try:
        fact_id.encode()
    except (AttributeError, UnicodeEncodeError):
        raise NotFoundError(f"no fact has the id {fact_id!r}; ids are strings") from None
    return fact_id
