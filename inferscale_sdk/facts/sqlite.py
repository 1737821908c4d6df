"""The fact store on one SQLite file."""

# ruff: noqa: D102 - the methods' contracts stand in FactStore

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import StoreError
from inferscale_sdk.facts import changes, ledger, queries
from inferscale_sdk.facts import keys as key_ledger
from inferscale_sdk.facts.base import EncodingRecord, FactStore, KeyState
from inferscale_sdk.facts.migrations import FACT_SCHEMA
from inferscale_sdk.facts.rows import check_fact, check_text, dump_metadata, optional_us
from inferscale_sdk.sqlite.clauses import check_count, check_owner
from inferscale_sdk.sqlite.database import Database
from inferscale_sdk.sqlite.times import to_us
from inferscale_sdk.types import Fact, FactEvent, Namespace, NewFact

__all__ = ["SQLiteFactStore"]

SECRET_BYTES = 32


class SQLiteFactStore(FactStore):
    """Facts in one SQLite file, for any number of threads and processes of one machine.

    Args:
        path: The file, made with mode 0600 (its folder with 0700) if it is absent; ``:memory:``
            keeps the facts in this object only.
        max_fact_chars: Longest text of a fact, in characters.

    Raises:
        ConfigurationError: The path is not a fact store, or one of a newer version.
        StoreError: The file cannot be opened.
    """

    def __init__(self, path: Path | str, *, max_fact_chars: int = 8192) -> None:
        self.max_fact_chars = check_count(max_fact_chars, "max_fact_chars", least=1)
        self._db = Database(path, FACT_SCHEMA)
        self._secret = self._load_secret()

    # -- facts -----------------------------------------------------------------------------

    def add(
        self, facts: Sequence[NewFact], owner: Namespace, *, max_facts: int | None = None
    ) -> list[Fact]:
        check_owner(owner, "owner")
        rows = []
        for fact in facts:
            check_fact(fact, self.max_fact_chars)
            event_us = optional_us(fact.event_time, "event_time")
            rows.append(changes.FactRow(fact, dump_metadata(fact.metadata), event_us))
        if not rows:
            return []
        with self._db.write() as connection:
            if max_facts is not None:
                queries.check_room(connection, owner, len(rows), max_facts)
            return changes.insert(connection, rows, owner)

    def get(self, fact_id: str, scope: Namespace, *, include_deleted: bool = False) -> Fact:
        with self._db.read() as connection:
            return queries.get(connection, fact_id, scope, include_deleted)

    def get_many(self, fact_ids: Sequence[str], scope: Namespace) -> list[Fact]:
        check_owner(scope, "scope")
        with self._db.read() as connection:
            return queries.get_many(connection, fact_ids, scope)

    def find(
        self,
        scope: Namespace,
        *,
        filters: Mapping[str, Any] | None = None,
        conversation_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        include_deleted: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Fact]:
        with self._db.read() as connection:
            return queries.find(
                connection,
                scope,
                filters=filters,
                conversation_id=conversation_id,
                since=since,
                until=until,
                include_deleted=include_deleted,
                limit=limit,
                offset=offset,
            )

    def count(self, scope: Namespace) -> int:
        with self._db.read() as connection:
            return queries.count(connection, scope)

    def update(
        self,
        fact_id: str,
        scope: Namespace,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_time: datetime | None = None,
    ) -> Fact:
        if text is not None:
            check_text(text, self.max_fact_chars)
        if metadata is not None:
            dump_metadata(metadata)
        optional_us(event_time, "event_time")
        with self._db.write() as connection:
            return changes.update(
                connection, fact_id, scope, text=text, metadata=metadata, event_time=event_time
            )

    def delete(self, fact_id: str, scope: Namespace, *, hard: bool = False) -> Fact:
        with self._db.write() as connection:
            fact = changes.delete(connection, fact_id, scope, hard=hard)
        if hard:
            self._db.scrub()
        return fact

    def delete_all(self, scope: Namespace, *, hard: bool = False) -> list[Fact]:
        """Delete every fact the scope covers; a hard one also erases softly deleted facts."""
        with self._db.write() as connection:
            facts = changes.delete_all(connection, scope, hard=hard)
        if hard:
            self._db.scrub()
        return facts

    def history(self, fact_id: str, scope: Namespace) -> list[FactEvent]:
        with self._db.read() as connection:
            return queries.history(connection, fact_id, scope)

    def preceding(self, fact: Fact, n: int) -> list[Fact]:
        with self._db.read() as connection:
            return queries.preceding(connection, fact, n)

    def namespaces(self) -> list[Namespace]:
        with self._db.read() as connection:
            return queries.namespaces(connection)

    # -- change feed -----------------------------------------------------------------------

    def last_seq(self) -> int:
        with self._db.read() as connection:
            return queries.last_seq(connection)

    def changes(self, after_seq: int, limit: int = 1000) -> list[FactEvent]:
        with self._db.read() as connection:
            return queries.changes(connection, after_seq, limit)

    def current(self, fact_ids: Sequence[str]) -> list[Fact]:
        with self._db.read() as connection:
            return queries.get_many(connection, fact_ids, None)

    # -- ledger of encodings ---------------------------------------------------------------

    def record_encodings(self, records: Sequence[EncodingRecord]) -> None:
        if not records:
            return
        with self._db.write() as connection:
            for entry in records:
                ledger.record(connection, entry, ledger.add_profile(connection, entry.profile))

    def encodings(self, fact_ids: Sequence[str], profile: str) -> dict[str, EncodingRecord]:
        with self._db.read() as connection:
            return ledger.encodings(connection, fact_ids, profile)

    def pending(
        self, profile: str, *, scope: Namespace | None = None, limit: int = 1000
    ) -> list[Fact]:
        profile_pk = self._profile(profile)
        with self._db.read() as connection:
            return ledger.pending(connection, profile_pk, scope, limit)

    def count_pending(self, profile: str, *, scope: Namespace | None = None) -> int:
        profile_pk = self._profile(profile)
        with self._db.read() as connection:
            return ledger.count_pending(connection, profile_pk, scope)

    def drop_encodings(self, keys: Sequence[str]) -> int:
        with self._db.write() as connection:
            return ledger.drop_encodings(connection, keys)

    def invalidate(self, fact_ids: Sequence[str]) -> list[str]:
        with self._db.write() as connection:
            return ledger.invalidate_ids(connection, fact_ids)

    # -- ledger of keys --------------------------------------------------------------------

    def note_keys(self, keys: Sequence[str], *, lasting: bool = False) -> None:
        with self._db.write() as connection:
            key_ledger.note(connection, keys, lasting=lasting)

    def orphans(self, before: datetime, limit: int = 10_000) -> list[str]:
        with self._db.read() as connection:
            return key_ledger.orphans(connection, to_us(before, "before"), limit)

    def queue_forget(self, keys: Sequence[str]) -> list[str]:
        with self._db.write() as connection:
            return key_ledger.queue_unused(connection, keys)

    def profiles(self) -> list[str]:
        with self._db.read() as connection:
            return key_ledger.profiles(connection)

    def recorded_keys(self, profile: str, *, after: str = "", limit: int = 1000) -> list[str]:
        with self._db.read() as connection:
            return key_ledger.recorded(connection, profile, after, limit)

    def keys_behind(self, fact_ids: Sequence[str]) -> list[str]:
        with self._db.read() as connection:
            return key_ledger.behind(connection, fact_ids)

    def key_states(self, keys: Sequence[str]) -> dict[str, KeyState]:
        with self._db.read() as connection:
            return key_ledger.states(connection, keys)

    # -- ledger of keys to forget ----------------------------------------------------------

    def forget_queue(self, limit: int = 10_000) -> list[str]:
        with self._db.read() as connection:
            return ledger.forget_queue(connection, limit)

    def forget_done(self, keys: Sequence[str]) -> None:
        with self._db.write() as connection:
            ledger.forget_done(connection, keys)

    def dropped_keys(self, limit: int = 10_000) -> list[str]:
        with self._db.read() as connection:
            return key_ledger.dropped(connection, limit)

    # -- life ------------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        return self._secret

    def close(self) -> None:
        self._db.close()

    def _profile(self, profile: str) -> int:
        with self._db.read() as connection:
            known = ledger.find_profile(connection, profile)
        if known is not None:
            return known
        with self._db.write() as connection:
            return ledger.add_profile(connection, profile)

    def _load_secret(self) -> bytes:
        with self._db.read() as connection:
            row = connection.execute("SELECT value FROM store WHERE name = 'secret'").fetchone()
        if row is None:
            with self._db.write() as connection:
                # Another process may have been first: its secret stands.
                connection.execute(
                    "INSERT OR IGNORE INTO store VALUES ('secret', ?)",
                    (secrets.token_bytes(SECRET_BYTES),),
                )
                row = connection.execute("SELECT value FROM store WHERE name = 'secret'").fetchone()
        secret = bytes(row[0])
        if len(secret) != SECRET_BYTES:
            raise StoreError(
                f"{self._db.path}: the store's secret has {len(secret)} bytes instead of "
                f"{SECRET_BYTES}; restore a backup"
            )
        return secret
