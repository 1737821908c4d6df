"""Numbered migrations: each one transaction, with its own record in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.sqlite.times import now_us

__all__ = ["Migration", "Schema", "migrate"]


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. A step that has shipped is never changed; a new one is added.

    Args:
        number: From 1, without gaps.
        name: What it does, for people.
        statements: SQL, run in order in one transaction.
    """

    number: int
    name: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """A kind of file.

    Args:
        kind: For people, e.g. ``fact store``.
        application_id: SQLite's mark in the header that tells kinds of files apart (31 bits).
        migrations: All steps, in order.
    """

    kind: str
    application_id: int
    migrations: tuple[Migration, ...]


def migrate(connection: sqlite3.Connection, schema: Schema, path: str) -> list[int]:
    """Bring the file up to date; safe when several processes open it at once.

    Returns:
        Numbers of the steps that were taken now.

    Raises:
        ConfigurationError: The file is of another kind, or was written by a newer version.
    """
    done = _applied(connection, schema, path)
    newest = schema.migrations[-1].number
    if done and max(done) > newest:
        raise ConfigurationError(
            f"{path} is a {schema.kind} of schema {max(done)}, this version of inferscale-sdk "
            f"knows schemas up to {newest}; upgrade inferscale-sdk or open another file"
        )
    taken = []
    for step in schema.migrations:
        if step.number not in done and _apply(connection, schema, step):
            taken.append(step.number)
    return taken


def _applied(connection: sqlite3.Connection, schema: Schema, path: str) -> set[int]:
    # One transaction, so that a file another process is just making is seen whole or empty.
    connection.execute("BEGIN")
    try:
        mark = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if mark != schema.application_id and (mark != 0 or tables != 0):
            raise ConfigurationError(
                f"{path} is not a {schema.kind} of inferscale-sdk (its mark is {mark:#x}, "
                f"expected {schema.application_id:#x}); give another path"
            )
        return _recorded(connection) if tables else set()
    finally:
        connection.execute("ROLLBACK")


def _recorded(connection: sqlite3.Connection) -> set[int]:
    return {row[0] for row in connection.execute("SELECT number FROM migration")}


def _apply(connection: sqlite3.Connection, schema: Schema, step: Migration) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migration"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_us INTEGER NOT NULL)"
        )
        fresh = step.number not in _recorded(connection)
        if fresh:
            connection.execute(f"PRAGMA application_id = {schema.application_id:d}")
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migration VALUES (?, ?, ?)", (step.number, step.name, now_us())
            )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return fresh


def check_numbers(migrations: Sequence[Migration]) -> None:
    """Steps are numbered 1, 2, 3 …; called by tests of each schema."""
    assert [m.number for m in migrations] == list(range(1, len(migrations) + 1))
