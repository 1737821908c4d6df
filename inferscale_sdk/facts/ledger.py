"""The ledger of encodings and that of keys to forget, in the caller's transaction.

A key is the address of its content, so two facts with the same words behind the same window share
one. A key is queued to be forgotten only when no record names it any more.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.facts.keys import forget_noted, note_dropped, queue_unused
from inferscale_sdk.facts.rows import FACT_COLUMNS, as_ids, load_fact
from inferscale_sdk.sqlite.clauses import Clause, all_of, check_count, scope_clause
from inferscale_sdk.sqlite.times import from_us, to_us
from inferscale_sdk.types import Fact, Namespace

__all__ = [
    "add_profile",
    "count_pending",
    "drop_encodings",
    "encodings",
    "find_profile",
    "forget_done",
    "forget_queue",
    "invalidate",
    "invalidate_ids",
    "pending",
    "record",
]

_AMONG = "IN (SELECT value FROM json_each(?))"


# -- profiles ------------------------------------------------------------------------------------


def find_profile(connection: sqlite3.Connection, profile: str) -> int | None:
    """The profile's number, ``None`` if it was never asked for."""
    row = connection.execute("SELECT pk FROM profile WHERE name = ?", (profile,)).fetchone()
    return None if row is None else int(row[0])


def add_profile(connection: sqlite3.Connection, profile: str) -> int:
    """The profile's number; a new profile starts with every live fact pending."""
    known = find_profile(connection, profile)
    if known is not None:
        return known
    pk = connection.execute("INSERT INTO profile (name) VALUES (?)", (profile,)).lastrowid
    assert pk is not None
    connection.execute(
        "INSERT INTO pending SELECT ?, partition, conversation_id, position, pk FROM fact"
        " WHERE deleted_us IS NULL",
        (pk,),
    )
    return pk


# -- encodings -----------------------------------------------------------------------------------


def record(connection: sqlite3.Connection, entry: EncodingRecord, profile_pk: int) -> bool:
    """Store one record if it still holds, else queue its key; see ``record_encodings``."""
    connection.execute(
        "INSERT OR IGNORE INTO noted (key, noted_us) VALUES (?, ?)",
        (entry.key, to_us(entry.created_at, "created_at")),
    )
    fact_pk = _still_current(connection, entry)
    context_pks = None if fact_pk is None else _still_standing(connection, entry)
    if fact_pk is None or context_pks is None:
        queue_unused(connection, [entry.key])
        return False
    old = connection.execute(
        "DELETE FROM encoding WHERE profile_pk = ? AND fact_pk = ? RETURNING key",
        (profile_pk, fact_pk),
    ).fetchall()
    encoding_pk = connection.execute(
        "INSERT INTO encoding (profile_pk, fact_pk, version, key, n_tokens, context, created_us)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            profile_pk,
            fact_pk,
            entry.version,
            entry.key,
            entry.n_tokens,
            json.dumps(entry.context_fact_ids),
            to_us(entry.created_at, "created_at"),
        ),
    ).lastrowid
    connection.executemany(
        "INSERT INTO encoding_context VALUES (?, ?)", [(pk, encoding_pk) for pk in context_pks]
    )
    connection.execute("DELETE FROM forget WHERE key = ?", (entry.key,))
    queue_unused(connection, [row[0] for row in old])
    return True


def _still_current(connection: sqlite3.Connection, entry: EncodingRecord) -> int | None:
    row = connection.execute(
        "SELECT pk FROM fact WHERE id = ? AND version = ? AND deleted_us IS NULL",
        (entry.fact_id, entry.version),
    ).fetchone()
    return None if row is None else int(row[0])


def _still_standing(connection: sqlite3.Connection, entry: EncodingRecord) -> set[int] | None:
    """Row numbers of the window's facts, ``None`` if one is lost.

    A window over another owner would carry the words of one user, agent or run into another's KV:
    it counts as lost, whoever made it.
    """
    wanted = set(entry.context_fact_ids)
    ids = as_ids(sorted(wanted), "context_fact_ids")
    rows = connection.execute(
        "SELECT context.pk FROM json_each(?) AS wanted"
        " CROSS JOIN fact AS context ON context.id = wanted.value"
        " JOIN fact AS own ON own.id = ? AND own.partition = context.partition"
        " AND own.app_id IS context.app_id AND own.user_id IS context.user_id"
        " AND own.agent_id IS context.agent_id AND own.run_id IS context.run_id"
        " WHERE context.deleted_us IS NULL",
        (ids, entry.fact_id),
    ).fetchall()
    if len(rows) != len(wanted):
        return None
    return {row[0] for row in rows}


def encodings(
    connection: sqlite3.Connection, fact_ids: Sequence[str], profile: str
) -> dict[str, EncodingRecord]:
    """See ``FactStore.encodings``."""
    rows = connection.execute(
        "SELECT fact.id, fact.version, e.key, e.n_tokens, e.context, e.created_us"
        " FROM json_each(?) AS wanted"
        " CROSS JOIN fact ON fact.id = wanted.value AND fact.deleted_us IS NULL"
        " CROSS JOIN encoding AS e ON e.fact_pk = fact.pk AND e.version = fact.version"
        " AND e.profile_pk = (SELECT pk FROM profile WHERE name = ?)",
        (as_ids(fact_ids), profile),
    )
    return {
        fact_id: EncodingRecord(
            fact_id=fact_id,
            version=version,
            profile=profile,
            key=key,
            n_tokens=n_tokens,
            context_fact_ids=tuple(json.loads(context)),
            created_at=from_us(created_us),
        )
        for fact_id, version, key, n_tokens, context, created_us in rows
    }


def pending(
    connection: sqlite3.Connection, profile_pk: int, scope: Namespace | None, limit: int
) -> list[Fact]:
    """See ``FactStore.pending``."""
    source, where = _pending_source(profile_pk, scope)
    rows = connection.execute(
        f"SELECT {FACT_COLUMNS} FROM {source} WHERE {where.sql}"  # noqa: S608
        " ORDER BY pending.partition, pending.conversation_id, pending.position LIMIT ?",
        (*where.params, check_count(limit, "limit")),
    )
    return [load_fact(row) for row in rows]


def count_pending(connection: sqlite3.Connection, profile_pk: int, scope: Namespace | None) -> int:
    """See ``FactStore.count_pending``."""
    source, where = _pending_source(profile_pk, scope)
    if scope is None:
        source = "pending"
    sql = f"SELECT count(*) FROM {source} WHERE {where.sql}"  # noqa: S608
    return int(connection.execute(sql, where.params).fetchone()[0])


def _pending_source(profile_pk: int, scope: Namespace | None) -> tuple[str, Clause]:
    mine = Clause("pending.profile_pk = ?", (profile_pk,))
    if scope is None:
        # Loops over pending in the order of its key: a page costs what it returns.
        return "pending CROSS JOIN fact ON fact.pk = pending.fact_pk", mine
    # Loops over the scope's facts: others' backlog is not read.
    return (
        "fact CROSS JOIN pending ON pending.fact_pk = fact.pk",
        all_of([scope_clause(scope, "fact"), mine]),
    )


def drop_encodings(connection: sqlite3.Connection, keys: Sequence[str]) -> int:
    """See ``FactStore.drop_encodings``."""
    return connection.execute(
        f"DELETE FROM encoding WHERE key {_AMONG}",  # noqa: S608
        (as_ids(keys, "keys"),),
    ).rowcount


def invalidate_ids(connection: sqlite3.Connection, fact_ids: Sequence[str]) -> list[str]:
    """See ``FactStore.invalidate``."""
    rows = connection.execute(f"SELECT pk FROM fact WHERE id {_AMONG}", (as_ids(fact_ids),))  # noqa: S608
    return invalidate(connection, [row[0] for row in rows])


def invalidate(connection: sqlite3.Connection, fact_pks: Sequence[int]) -> list[str]:
    """Drop the records of these facts and of those encoded behind them; queue and return keys."""
    pks = json.dumps(list(fact_pks))
    rows = connection.execute(
        f"SELECT pk, key FROM encoding WHERE fact_pk {_AMONG} UNION"  # noqa: S608
        " SELECT e.pk, e.key FROM encoding_context AS c JOIN encoding AS e ON e.pk = c.encoding_pk"
        f" WHERE c.fact_pk {_AMONG} ORDER BY 1",
        (pks, pks),
    ).fetchall()
    connection.execute(
        f"DELETE FROM encoding WHERE pk {_AMONG}",  # noqa: S608
        (json.dumps([row[0] for row in rows]),),
    )
    return queue_unused(connection, [row[1] for row in rows])


# -- keys to forget ------------------------------------------------------------------------------


def forget_queue(connection: sqlite3.Connection, limit: int) -> list[str]:
    """See ``FactStore.forget_queue``."""
    rows = connection.execute(
        "SELECT key FROM forget ORDER BY pk LIMIT ?", (check_count(limit, "limit"),)
    )
    return [row[0] for row in rows]


def forget_done(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """See ``FactStore.forget_done``."""
    connection.execute(
        f"DELETE FROM forget WHERE key {_AMONG}",  # noqa: S608
        (as_ids(keys, "keys"),),
    )
    forget_noted(connection, keys)
    note_dropped(connection, keys)
