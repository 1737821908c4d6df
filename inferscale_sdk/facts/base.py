"""The contract of a fact store.

The store is the truth: text, owner, times and order. Vectors and KV are derived and can be made
again from it. It also keeps two ledgers that must survive a restart: which segment of KV each fact
has (so that nothing is encoded twice) and which keys still have to be forgotten on the server.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from inferscale_sdk.types import Fact, FactEvent, Namespace, NewFact

__all__ = ["FACTS_FILE", "EncodingRecord", "FactStore", "KeyState"]

FACTS_FILE = "facts.db"
"""What a memory's fact store is called in its folder."""


class KeyState(StrEnum):
    """What a store knows of a key of its own."""

    IN_USE = "in use"
    """A fact's record names it, or it is a preamble."""
    TO_FORGET = "to forget"
    """It waits to be dropped on the server."""
    NOTED = "noted"
    """Its capture was asked for and nothing came of it yet: under way, or an orphan."""


@dataclass(frozen=True, slots=True)
class EncodingRecord:
    """One fact version has KV under ``key`` for one profile.

    Args:
        fact_id: The fact.
        version: The version whose text was encoded.
        profile: Model fingerprint, frame version and window strategy; KV of one profile is
            useless to another.
        key: The segment's key.
        n_tokens: Tokens of the segment.
        context_fact_ids: The facts that stood in the window, in order. When one of them changes
            or goes, this segment must go too.
        created_at: When it was encoded (UTC).
    """

    fact_id: str
    version: int
    profile: str
    key: str
    n_tokens: int
    context_fact_ids: tuple[str, ...]
    created_at: datetime


class FactStore(ABC):
    """Facts of many namespaces, with versions, history and two ledgers.

    Every method that takes a ``scope`` sees only facts whose owner the scope covers, and raises
    :class:`~inferscale_sdk.errors.NamespaceError` for an empty scope. Methods are safe to call
    from several threads and from several processes on one store. Softly deleted facts are seen
    only by :meth:`history` and where ``include_deleted`` is set.
    """

    # -- facts -----------------------------------------------------------------------------

    @abstractmethod
    def add(
        self, facts: Sequence[NewFact], owner: Namespace, *, max_facts: int | None = None
    ) -> list[Fact]:
        """Store facts in order, in one transaction.

        Positions continue those of their conversation *within this owner's partition*
        (``owner.partition``): they order what one user said to all agents in it.

        Raises:
            NamespaceError: ``owner`` is empty.
            ConfigurationError: A text is blank or longer than the store's ``max_fact_chars``,
                another field is too long, or metadata is not JSON; nothing is stored then.
            StoreFull: The owner's partition would hold more than ``max_facts`` live facts; nothing
                is stored then.
        """

    @abstractmethod
    def get(self, fact_id: str, scope: Namespace, *, include_deleted: bool = False) -> Fact:
        """The current version.

        Raises:
            NotFoundError: No such fact in this scope, or it is deleted.
        """

    @abstractmethod
    def get_many(self, fact_ids: Sequence[str], scope: Namespace) -> list[Fact]:
        """The current versions of those that exist in this scope, in the order asked for."""

    @abstractmethod
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
        """Facts ordered by creation, then position.

        ``filters`` are metadata equalities ``{"topic": "food"}`` or operators
        ``{"year": {"gte": 2020, "lt": 2024}}`` with ``eq ne gt gte lt lte in exists``. ``since``
        (inclusive) and ``until`` (exclusive) compare the event time, or the creation time of
        facts that have none.
        """

    @abstractmethod
    def count(self, scope: Namespace) -> int:
        """How many live facts the scope covers."""

    @abstractmethod
    def update(
        self,
        fact_id: str,
        scope: Namespace,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_time: datetime | None = None,
    ) -> Fact:
        """Store a new version; what is ``None`` stays. Metadata is replaced, not merged.

        Returns the new version; an update that changes nothing returns the current one.

        Raises:
            NotFoundError: As for :meth:`get`.
        """

    @abstractmethod
    def delete(self, fact_id: str, scope: Namespace, *, hard: bool = False) -> Fact:
        """Delete softly (text stays in history) or hard (text is erased everywhere, history too).

        Returns the fact as it was. A hard delete also works on a softly deleted fact.

        Raises:
            NotFoundError: As for :meth:`get`.
        """

    @abstractmethod
    def delete_all(self, scope: Namespace, *, hard: bool = False) -> list[Fact]:
        """Delete every fact the scope covers; returns them as they were."""

    @abstractmethod
    def history(self, fact_id: str, scope: Namespace) -> list[FactEvent]:
        """What happened to the fact, oldest first; works on deleted facts.

        Raises:
            NotFoundError: The scope never held such a fact.
        """

    @abstractmethod
    def preceding(self, fact: Fact, n: int) -> list[Fact]:
        """Up to ``n`` live facts before it in its conversation, oldest first.

        Only facts of the very same owner: app, user, agent and run. What one agent was told must
        not shape the KV that is served to another.
        """

    @abstractmethod
    def namespaces(self) -> list[Namespace]:
        """Every owner that has a live fact. For operators; adapters do not call it."""

    # -- change feed -----------------------------------------------------------------------

    @abstractmethod
    def last_seq(self) -> int:
        """The highest ``seq`` so far, 0 for an empty store. Cheap: called on every request."""

    @abstractmethod
    def changes(self, after_seq: int, limit: int = 1000) -> list[FactEvent]:
        """Events with ``seq > after_seq``, oldest first, of all namespaces."""

    @abstractmethod
    def current(self, fact_ids: Sequence[str]) -> list[Fact]:
        """Live facts by id over all namespaces, for indexing and encoding only."""

    # -- ledger of encodings ---------------------------------------------------------------

    @abstractmethod
    def record_encodings(self, records: Sequence[EncodingRecord]) -> None:
        """Remember segments.

        A record whose fact has moved on to another version, is deleted, or lost a context fact
        meanwhile is not recorded, nor is one with a context fact of another owner; its key goes
        to the forget ledger.
        """

    @abstractmethod
    def encodings(self, fact_ids: Sequence[str], profile: str) -> dict[str, EncodingRecord]:
        """The record of each fact's *current* version under ``profile``, where there is one."""

    @abstractmethod
    def pending(
        self, profile: str, *, scope: Namespace | None = None, limit: int = 1000
    ) -> list[Fact]:
        """Live facts without a record under ``profile``.

        Ordered by partition, conversation and position. ``scope=None`` means all (for the encoder
        only).
        """

    @abstractmethod
    def count_pending(self, profile: str, *, scope: Namespace | None = None) -> int:
        """How many facts :meth:`pending` would return without a limit."""

    @abstractmethod
    def drop_encodings(self, keys: Sequence[str]) -> int:
        """Remove records by key (the server lost them); their facts become pending again."""

    @abstractmethod
    def invalidate(self, fact_ids: Sequence[str]) -> list[str]:
        """Remove the records of these facts, and of every fact that had one of them in its window.

        Under all profiles. Their keys are put on the forget ledger and returned, but for keys that
        the record of another fact still names. ``update`` (of text or event time) and ``delete``
        do this themselves, in the same transaction as the change.
        """

    # -- ledger of keys --------------------------------------------------------------------

    @abstractmethod
    def note_keys(self, keys: Sequence[str], *, lasting: bool = False) -> None:
        """These keys are about to be captured on a server; a key noted before gets a new time.

        They stay noted until :meth:`forget_done`, so that KV whose capture was never recorded is
        found by :meth:`orphans`. ``lasting`` keys are no fact's (preambles) and never orphans.
        """

    @abstractmethod
    def orphans(self, before: datetime, limit: int = 10_000) -> list[str]:
        """Keys last noted before ``before`` that no record names and that no forget waits for."""

    @abstractmethod
    def queue_forget(self, keys: Sequence[str]) -> list[str]:
        """Put keys on the forget ledger, but for those that a record names; returns those put."""

    @abstractmethod
    def profiles(self) -> list[str]:
        """Every profile that was ever asked for, oldest first."""

    @abstractmethod
    def recorded_keys(self, profile: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Keys that records under ``profile`` name, in order, from behind ``after``."""

    @abstractmethod
    def keys_behind(self, fact_ids: Sequence[str]) -> list[str]:
        """Keys of these facts' records, and of those with one of these facts in their window."""

    @abstractmethod
    def key_states(self, keys: Sequence[str]) -> dict[str, KeyState]:
        """What this store knows of keys; one that is not in the answer is not known to be ours."""

    # -- ledger of keys to forget ----------------------------------------------------------

    @abstractmethod
    def forget_queue(self, limit: int = 10_000) -> list[str]:
        """Keys that still have to be dropped on the server, oldest first."""

    @abstractmethod
    def forget_done(self, keys: Sequence[str]) -> None:
        """These keys have been dropped."""

    @abstractmethod
    def dropped_keys(self, limit: int = 10_000) -> list[str]:
        """Keys dropped in the last 30 days that no record names, latest first.

        One server dropped them; another one may still have them.
        """

    # -- life ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def secret(self) -> bytes:
        """32 random bytes made with the store: the root of handle signatures and namespace keys."""

    @property
    def store_id(self) -> str:
        """A public name of this very store: a store made anew in its place has another."""
        return hashlib.blake2b(self.secret, digest_size=16, person=b"ifs-store-id").hexdigest()

    @abstractmethod
    def close(self) -> None:
        """Release connections. Calling it twice is fine."""
