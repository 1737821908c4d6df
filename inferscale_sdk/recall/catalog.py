"""The SQLite side of recall: which items there are, whose, and what changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall.base import RecallQuery
from inferscale_sdk.recall.terms import clean, terms
from inferscale_sdk.sqlite.clauses import (
    Clause,
    all_of,
    owner_values,
    scope_clause,
    time_clause,
)
from inferscale_sdk.sqlite.filters import filter_clause
from inferscale_sdk.sqlite.times import to_us
from inferscale_sdk.types import Fact, Namespace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Item",
    "Partition",
    "Stored",
    "allowed_items",
    "clear",
    "get_state",
    "partitions",
    "put",
    "read_integers",
    "remove",
    "set_state",
    "stored",
]

_AMONG = "IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class Item:
    """A fact, ready to be written. ``vector`` is float32 bytes, ``None`` without an embedder."""

    fact_id: str
    version: int
    owner: Namespace
    text: str
    metadata: str
    time_us: int
    terms: tuple[str, ...]
    vector: bytes | None = None

    @classmethod
    def of(cls, fact: Fact) -> Item:
        """The item of a fact, without its vector.

        Raises:
            ConfigurationError: A time is naive, or metadata are not JSON.
        """
        text = clean(fact.text)
        moment = fact.created_at if fact.event_time is None else fact.event_time
        try:
            metadata = json.dumps(dict(fact.metadata), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"metadata of fact {fact.id!r} are not JSON ({error})"
            ) from None
        return cls(
            fact_id=fact.id,
            version=fact.version,
            owner=fact.namespace,
            text=text,
            metadata=clean(metadata),
            time_us=to_us(moment, "event_time"),
            terms=tuple(terms(text)),
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """What the file knows of a fact."""

    pk: int
    version: int
    text: str
    vector: bytes | None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition a search looks into.

    Args:
        pk: Its number.
        generation: Grows with every change of its items.
        epoch: Grows when vectors were added to items that were already there.
        covered: Whether the scope covers all of it, so that owners need not be looked at.
    """

    pk: int
    generation: int
    epoch: int
    covered: bool


# -- reading -------------------------------------------------------------------------------------


def stored(connection: sqlite3.Connection, fact_ids: Sequence[str]) -> dict[str, Stored]:
    """What the file has of these facts."""
    rows = connection.execute(
        "SELECT item.fact_id, item.pk, version, text, data FROM json_each(?) AS wanted"
        " CROSS JOIN item ON item.fact_id = wanted.value"
        " LEFT JOIN vector ON vector.item_pk = item.pk",
        (json.dumps(list(fact_ids)),),
    )
    return {fact_id: Stored(*rest) for fact_id, *rest in rows}


def partitions(connection: sqlite3.Connection, scope: Namespace) -> list[Partition]:
    """Partitions with facts the scope may see.

    Raises:
        NamespaceError: The scope is empty.
    """
    if scope.user_id is not None:
        # Whatever has a user lies in that user's partitions, one for each app.
        where = Clause("owner_kind = 'u' AND owner_id = ?", (scope.user_id,))
        if scope.app_id is not None:
            where = all_of([where, Clause("app_id = ?", (scope.app_id,))])
    else:
        seen = scope_clause(scope, "item")
        where = Clause(
            f"pk IN (SELECT DISTINCT partition_pk FROM item WHERE {seen.sql})",  # noqa: S608
            seen.params,
        )
    rows = connection.execute(
        f"SELECT pk, generation, epoch, owner_kind FROM partition WHERE {where.sql} ORDER BY pk",  # noqa: S608
        where.params,
    )
    return [
        Partition(pk, generation, epoch, _covers(scope, kind))
        for pk, generation, epoch, kind in rows
    ]


def _covers(scope: Namespace, kind: str) -> bool:
    """Whether what picked the partition already settles every id the scope sets."""
    beyond = {
        "u": (scope.agent_id, scope.run_id),
        "a": (scope.run_id,),
        "r": (),
    }.get(kind, ())
    return all(value is None for value in beyond)


def allowed_items(
    connection: sqlite3.Connection, partition: Partition, query: RecallQuery
) -> NDArray[np.int64] | None:
    """Numbers of the items that pass scope, filters and times, ascending; ``None`` for all.

    Raises:
        ConfigurationError: A filter is malformed or a time is naive.
    """
    scope = [] if partition.covered else [scope_clause(query.scope, "+item")]
    time = time_clause("item.time_us", query.since, query.until)
    clauses = [*scope, time, filter_clause(query.filters, "item.metadata")]
    where = all_of([clause for clause in clauses if clause.sql != "1"])
    if where.sql == "1":
        return None
    return read_integers(
        connection,
        f"SELECT pk FROM item WHERE partition_pk = ? AND {where.sql} ORDER BY pk",  # noqa: S608
        (partition.pk, *where.params),
    )


def read_integers(
    connection: sqlite3.Connection, sql: str, params: Sequence[Any]
) -> NDArray[np.int64]:
    """One column of whole numbers, as an array ``[row]``."""
    import numpy as np

    rows: Iterator[tuple[int]] = connection.execute(sql, params)
    return np.fromiter((row[0] for row in rows), dtype=np.int64)


def get_state(connection: sqlite3.Connection, name: str) -> Any:
    """A value of the file's own, ``None`` if it was never set."""
    row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


# -- writing -------------------------------------------------------------------------------------


def set_state(connection: sqlite3.Connection, name: str, value: int | str) -> None:
    """Set a value of the file's own."""
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def put(
    connection: sqlite3.Connection, items: Sequence[Item], mark: Callable[[int, str], str]
) -> None:
    """Write items that are newer than what is stored, or bring a vector that was missing.

    Args:
        connection: In a write transaction.
        items: What to write.
        mark: Partition number and term to the term as it stands in ``lexicon``.
    """
    known = stored(connection, [item.fact_id for item in items])
    changed: set[int] = set()
    for item in items:
        old = known.get(item.fact_id)
        if old is not None:
            missing = old.vector is None and item.vector is not None
            if old.version > item.version or (old.version == item.version and not missing):
                continue
            changed |= _drop(connection, [old.pk])
        changed.add(_insert(connection, item, mark))
    _touch(connection, changed)


def _insert(connection: sqlite3.Connection, item: Item, mark: Callable[[int, str], str]) -> int:
    partition_pk = _partition_of(connection, item.owner)
    pk = connection.execute(
        "INSERT INTO item (fact_id, version, partition_pk, app_id, user_id, agent_id, run_id,"
        " text, metadata, time_us, n_terms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            item.fact_id,
            item.version,
            partition_pk,
            *owner_values(item.owner),
            item.text,
            item.metadata,
            item.time_us,
            len(item.terms),
        ),
    ).lastrowid
    connection.execute(
        "INSERT INTO lexicon (rowid, terms) VALUES (?, ?)",
        (pk, " ".join(mark(partition_pk, term) for term in dict.fromkeys(item.terms))),
    )
    if item.vector is not None:
        connection.execute("INSERT INTO vector VALUES (?, ?)", (pk, item.vector))
    return partition_pk


def _partition_of(connection: sqlite3.Connection, owner: Namespace) -> int:
    name = owner.partition
    row = connection.execute("SELECT pk FROM partition WHERE name = ?", (name,)).fetchone()
    if row is not None:
        return int(row[0])
    app_id, kind, owner_id = json.loads(name)
    pk = connection.execute(
        "INSERT INTO partition (name, app_id, owner_kind, owner_id) VALUES (?, ?, ?, ?)",
        (name, app_id, kind, owner_id),
    ).lastrowid
    assert pk is not None
    return pk


def remove(connection: sqlite3.Connection, fact_ids: Sequence[str]) -> int:
    """Drop facts; returns how many were there."""
    pks = [item.pk for item in stored(connection, fact_ids).values()]
    if pks:
        _touch(connection, _drop(connection, pks))
        # FTS5 only marks deleted terms; merging its segments is what takes the words away.
        connection.execute("INSERT INTO lexicon (lexicon) VALUES ('optimize')")
    return len(pks)


def clear(connection: sqlite3.Connection) -> None:
    """Drop every fact of every partition."""
    connection.execute("DELETE FROM lexicon")
    connection.execute("DELETE FROM item")
    connection.execute("INSERT INTO lexicon (lexicon) VALUES ('optimize')")
    connection.execute("UPDATE partition SET generation = generation + 1")


def _drop(connection: sqlite3.Connection, pks: Sequence[int]) -> set[int]:
    """Delete items by number; returns the partitions they were in."""
    among = json.dumps(list(pks))
    connection.execute(f"DELETE FROM lexicon WHERE rowid {_AMONG}", (among,))  # noqa: S608
    rows = connection.execute(
        f"DELETE FROM item WHERE pk {_AMONG} RETURNING partition_pk",  # noqa: S608
        (among,),
    ).fetchall()
    return {row[0] for row in rows}


def _touch(connection: sqlite3.Connection, partition_pks: set[int]) -> None:
    connection.execute(
        f"UPDATE partition SET generation = generation + 1 WHERE pk {_AMONG}",  # noqa: S608
        (json.dumps(sorted(partition_pks)),),
    )
