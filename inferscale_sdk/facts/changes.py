"""Changing facts. Every function runs in the caller's write transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inferscale_sdk.facts.ledger import invalidate
from inferscale_sdk.facts.queries import locate
from inferscale_sdk.facts.rows import (
    FACT_COLUMNS,
    dump_metadata,
    load_fact,
    load_time,
    new_fact_id,
    optional_us,
)
from inferscale_sdk.sqlite.clauses import Clause, all_of, owner_values, scope_clause
from inferscale_sdk.sqlite.times import from_us, now_us
from inferscale_sdk.types import Fact, FactEventKind, Namespace, NewFact

__all__ = ["FactRow", "delete", "delete_all", "insert", "update"]


@dataclass(frozen=True, slots=True)
class FactRow:
    """A checked fact, its derived columns made outside the transaction."""

    fact: NewFact
    metadata: str
    event_us: int | None


def insert(connection: sqlite3.Connection, rows: Iterable[FactRow], owner: Namespace) -> list[Fact]:
    """Store facts in order; see ``FactStore.add``."""
    now = now_us()
    positions: dict[str, int] = {}
    return [_insert(connection, row, owner, positions, now) for row in rows]


def _insert(
    connection: sqlite3.Connection,
    row: FactRow,
    owner: Namespace,
    positions: dict[str, int],
    now: int,
) -> Fact:
    new = row.fact
    place = positions.get(new.conversation_id)
    if place is None:
        last = connection.execute(
            "SELECT max(position) FROM fact WHERE partition = ? AND conversation_id = ?",
            (owner.partition, new.conversation_id),
        ).fetchone()[0]
        place = 0 if last is None else last + 1
    positions[new.conversation_id] = place + 1
    fact_id = new_fact_id()
    connection.execute(
        "INSERT INTO fact (id, app_id, user_id, agent_id, run_id, partition, conversation_id,"
        " position, version, text, speaker, source, metadata, event_us, created_us, updated_us)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)",
        (
            fact_id,
            *owner_values(owner),
            owner.partition,
            new.conversation_id,
            place,
            new.text,
            new.speaker,
            new.source,
            row.metadata,
            row.event_us,
            now,
            now,
        ),
    )
    _event(connection, FactEventKind.ADD, (fact_id, 1, owner), now, None, new.text)
    at = from_us(now)
    return Fact(
        id=fact_id,
        version=1,
        text=new.text,
        namespace=owner,
        conversation_id=new.conversation_id,
        position=place,
        created_at=at,
        updated_at=at,
        event_time=load_time(row.event_us),
        speaker=new.speaker,
        source=new.source,
        metadata=json.loads(row.metadata),
    )


def update(
    connection: sqlite3.Connection,
    fact_id: str,
    scope: Namespace,
    *,
    text: str | None,
    metadata: Mapping[str, Any] | None,
    event_time: datetime | None,
) -> Fact:
    """See ``FactStore.update``. Arguments are checked already."""
    pk, old = locate(connection, fact_id, scope, include_deleted=False)
    new_text = old.text if text is None else text
    new_metadata = dump_metadata(old.metadata if metadata is None else metadata)
    new_event = old.event_time if event_time is None else event_time
    same_prompt = new_text == old.text and new_event == old.event_time
    if same_prompt and new_metadata == dump_metadata(old.metadata):
        return old
    now = now_us()
    connection.execute(
        "UPDATE fact SET version = version + 1, text = ?, metadata = ?, event_us = ?,"
        " updated_us = ? WHERE pk = ?",
        (new_text, new_metadata, optional_us(new_event, "event_time"), now, pk),
    )
    owner = old.namespace
    event = (fact_id, old.version + 1, owner)
    _event(connection, FactEventKind.UPDATE, event, now, old.text, new_text)
    if same_prompt:
        # Metadata are not part of any prompt: the stored KV is that of the new version as well.
        connection.execute("UPDATE encoding SET version = version + 1 WHERE fact_pk = ?", (pk,))
    else:
        invalidate(connection, [pk])
    return locate(connection, fact_id, scope, include_deleted=False)[1]


def delete(connection: sqlite3.Connection, fact_id: str, scope: Namespace, *, hard: bool) -> Fact:
    """See ``FactStore.delete``."""
    pk, fact = locate(connection, fact_id, scope, include_deleted=hard)
    _delete(connection, [(pk, fact)], hard=hard)
    return fact


def delete_all(connection: sqlite3.Connection, scope: Namespace, *, hard: bool) -> list[Fact]:
    """See ``FactStore.delete_all``."""
    live = [] if hard else [Clause("fact.deleted_us IS NULL")]
    where = all_of([scope_clause(scope, "fact"), *live])
    rows = connection.execute(
        f"SELECT {FACT_COLUMNS}, fact.pk FROM fact WHERE {where.sql}"  # noqa: S608
        " ORDER BY fact.created_us, fact.position, fact.pk",
        where.params,
    ).fetchall()
    found = [(row[-1], load_fact(row[:-1])) for row in rows]
    _delete(connection, found, hard=hard)
    return [fact for _, fact in found]


def _delete(
    connection: sqlite3.Connection, found: Sequence[tuple[int, Fact]], *, hard: bool
) -> None:
    now = now_us()
    pks = [pk for pk, _ in found]
    among = "IN (SELECT value FROM json_each(?))"
    # Marked first, also before a purge: the triggers then know that these are not pending.
    connection.execute(
        f"UPDATE fact SET deleted_us = coalesce(deleted_us, ?) WHERE pk {among}",  # noqa: S608
        (now, json.dumps(pks)),
    )
    invalidate(connection, pks)
    if hard:
        ids = json.dumps([fact.id for _, fact in found])
        connection.execute(f"DELETE FROM fact WHERE pk {among}", (json.dumps(pks),))  # noqa: S608
        connection.execute(
            f"UPDATE event SET old_text = NULL, new_text = NULL WHERE fact_id {among}",  # noqa: S608
            (ids,),
        )
    kind = FactEventKind.PURGE if hard else FactEventKind.DELETE
    for _, fact in found:
        old_text = None if hard else fact.text
        _event(connection, kind, (fact.id, fact.version, fact.namespace), now, old_text, None)


def _event(
    connection: sqlite3.Connection,
    kind: FactEventKind,
    of: tuple[str, int, Namespace],
    at_us: int,
    old_text: str | None,
    new_text: str | None,
) -> None:
    fact_id, version, owner = of
    connection.execute(
        "INSERT INTO event (kind, fact_id, version, app_id, user_id, agent_id, run_id, at_us,"
        " old_text, new_text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (kind.value, fact_id, version, *owner_values(owner), at_us, old_text, new_text),
    )
