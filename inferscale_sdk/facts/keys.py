"""Keys that were ever sent to be captured: what is ours on a server, recorded or not.

A key is noted before its capture is asked for. Whoever dies between the capture and the record
leaves an orphan: KV that no fact names. It is found here, by a key that is noted and neither
recorded nor queued to be forgotten. Every function runs in the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from inferscale_sdk.facts.base import KeyState
from inferscale_sdk.facts.rows import as_ids
from inferscale_sdk.sqlite.clauses import check_count
from inferscale_sdk.sqlite.times import now_us

__all__ = [
    "behind",
    "dropped",
    "forget_noted",
    "note",
    "note_dropped",
    "orphans",
    "profiles",
    "queue_unused",
    "recorded",
    "states",
]

_KEPT_US = 30 * 86_400 * 1_000_000
_AMONG = "IN (SELECT value FROM json_each(?))"


def note(connection: sqlite3.Connection, keys: Sequence[str], *, lasting: bool) -> None:
    """See ``FactStore.note_keys``."""
    connection.execute(
        "INSERT INTO noted (key, noted_us, lasting) SELECT value, ?, ? FROM json_each(?)"
        " WHERE true ON CONFLICT (key) DO UPDATE SET noted_us = excluded.noted_us",
        (now_us(), int(lasting), as_ids(keys, "keys")),
    )


def orphans(connection: sqlite3.Connection, before_us: int, limit: int) -> list[str]:
    """See ``FactStore.orphans``."""
    rows = connection.execute(
        "SELECT key FROM noted WHERE NOT lasting AND noted_us < ?"
        " AND NOT EXISTS (SELECT 1 FROM encoding WHERE encoding.key = noted.key)"
        " AND NOT EXISTS (SELECT 1 FROM forget WHERE forget.key = noted.key)"
        " ORDER BY noted_us, key LIMIT ?",
        (before_us, check_count(limit, "limit")),
    )
    return [row[0] for row in rows]


def queue_unused(connection: sqlite3.Connection, keys: Iterable[str]) -> list[str]:
    """Put keys that no record names on the forget ledger; returns them."""
    queued = []
    for key in dict.fromkeys(keys):
        used = connection.execute("SELECT 1 FROM encoding WHERE key = ? LIMIT 1", (key,))
        if used.fetchone() is None:
            connection.execute("INSERT OR IGNORE INTO forget (key) VALUES (?)", (key,))
            queued.append(key)
    return queued


def forget_noted(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """These keys were dropped on the server; a key recorded anew meanwhile stays noted."""
    connection.execute(
        f"DELETE FROM noted WHERE key {_AMONG}"  # noqa: S608
        " AND NOT EXISTS (SELECT 1 FROM encoding WHERE encoding.key = noted.key)",
        (as_ids(keys, "keys"),),
    )


def note_dropped(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """A server has dropped these keys."""
    now = now_us()
    connection.execute(
        "INSERT OR REPLACE INTO dropped (key, dropped_us) SELECT value, ? FROM json_each(?)",
        (now, as_ids(keys, "keys")),
    )
    connection.execute("DELETE FROM dropped WHERE dropped_us < ?", (now - _KEPT_US,))


def dropped(connection: sqlite3.Connection, limit: int) -> list[str]:
    """See ``FactStore.dropped_keys``."""
    rows = connection.execute(
        "SELECT key FROM dropped WHERE dropped_us >= ?"
        " AND NOT EXISTS (SELECT 1 FROM encoding WHERE encoding.key = dropped.key)"
        " ORDER BY dropped_us DESC, key LIMIT ?",
        (now_us() - _KEPT_US, check_count(limit, "limit")),
    )
    return [row[0] for row in rows]


def recorded(connection: sqlite3.Connection, profile: str, after: str, limit: int) -> list[str]:
    """See ``FactStore.recorded_keys``."""
    rows = connection.execute(
        "SELECT DISTINCT key FROM encoding WHERE key > ?"
        " AND profile_pk = (SELECT pk FROM profile WHERE name = ?) ORDER BY key LIMIT ?",
        (after, profile, check_count(limit, "limit")),
    )
    return [row[0] for row in rows]


def profiles(connection: sqlite3.Connection) -> list[str]:
    """See ``FactStore.profiles``."""
    return [row[0] for row in connection.execute("SELECT name FROM profile ORDER BY pk")]


def behind(connection: sqlite3.Connection, fact_ids: Sequence[str]) -> list[str]:
    """See ``FactStore.keys_behind``."""
    pks = json.dumps(
        [
            row[0]
            for row in connection.execute(
                f"SELECT pk FROM fact WHERE id {_AMONG}",  # noqa: S608
                (as_ids(fact_ids),),
            )
        ]
    )
    rows = connection.execute(
        f"SELECT key FROM encoding WHERE fact_pk {_AMONG} UNION"  # noqa: S608
        " SELECT e.key FROM encoding_context AS c JOIN encoding AS e ON e.pk = c.encoding_pk"
        f" WHERE c.fact_pk {_AMONG} ORDER BY 1",
        (pks, pks),
    )
    return [row[0] for row in rows]


def states(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, KeyState]:
    """See ``FactStore.key_states``."""
    rows = connection.execute(
        "SELECT value,"
        " EXISTS (SELECT 1 FROM encoding WHERE key = value),"
        " EXISTS (SELECT 1 FROM forget WHERE key = value),"
        " (SELECT lasting FROM noted WHERE key = value)"
        " FROM json_each(?)",
        (as_ids(keys, "keys"),),
    )
    found = {}
    for key, is_recorded, is_queued, lasting in rows:
        if is_recorded or lasting:
            found[key] = KeyState.IN_USE
        elif is_queued:
            found[key] = KeyState.TO_FORGET
        elif lasting is not None:
            found[key] = KeyState.NOTED
    return found
