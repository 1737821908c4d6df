"""Segments on another machine, as one tier over any :class:`ObjectStore`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from inferscale_sdk.errors import CorruptSegment, StoreError, WrongKey
from inferscale_sdk.kv.cipher import Cipher
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.budget import BudgetedTier, Stored
from inferscale_sdk.tiers.coding import Coder, Tag
from inferscale_sdk.tiers.names import key_of, object_name
from inferscale_sdk.tiers.orders import Eviction
from inferscale_sdk.tiers.remote_base import ObjectStore
from inferscale_sdk.tiers.remote_debt_book import DebtBook
from inferscale_sdk.tiers.remote_debts import Debts
from inferscale_sdk.tiers.remote_line import Line, Unavailable
from inferscale_sdk.tiers.remote_open import RemoteLimits, open_objects

__all__ = ["RemoteLimits", "RemoteTier", "open_objects"]

logger = logging.getLogger(__name__)

_SETTLED_AT_ONCE = 16
_LISTING_SECONDS = 30.0


class RemoteTier(BudgetedTier):
    """One model's and rank's segments in a remote store that several servers may share.

    A store that is down, slow or breaks off in the middle costs a miss, never an exception on
    reading, and after two failures in a row it is left alone for a while, so that it does not slow
    every request. A damaged object is removed and counts as missing.

    A deletion that could not be carried out raises, is owed from then on, and is made up for with
    the next call that succeeds; until then the segment is not served. The same goes for a write
    that was given up on and lands after its segment was deleted.

    Args:
        objects: The store; closed with the tier.
        fingerprint: The model whose segments these are.
        rank: This process's shard of the model.
        limits: How long things may take.
        capacity_bytes: Budget for this model and rank, ``None`` for no limit. It is kept by
            listing the store when this process has written more than fits.
        storage: How keys and values are stored.
        cipher: Encrypts the objects; ``None`` stores them plain.
        eviction: Who goes first when the budget is exceeded.
        owner_bytes: Budget of each owner, ``None`` for no limit.
        division: How the model is divided over ranks; those of another division are not found.
        debts_folder: Where deletions under every model and rank that are owed outlive this
            process. Without it they end with it.

    Raises:
        ConfigurationError: A budget or ``rank`` is negative, or there is no such ``eviction``.
    """

    name = "remote"

    def __init__(
        self,
        objects: ObjectStore,
        fingerprint: str,
        *,
        rank: int = 0,
        limits: RemoteLimits | None = None,
        capacity_bytes: int | None = None,
        storage: StorageDtype = StorageDtype.AS_CACHE,
        cipher: Cipher | None = None,
        eviction: Eviction = "lru",
        owner_bytes: int | None = None,
        division: str = "",
        debts_folder: Path | None = None,
    ) -> None:
        super().__init__(capacity_bytes, owner_bytes, eviction)
        limits = limits or RemoteLimits()
        self._objects = objects
        self.storage = storage
        self._coder = Coder(fingerprint, storage, cipher, division, rank)
        self._shard = self._coder.shard
        self._ttl = limits.ttl_seconds
        self._used_at: dict[str, float] = {}
        self._sweeping = threading.Lock()
        self._line = Line(objects.address, limits, self._meter)
        book = None if debts_folder is None else DebtBook(debts_folder, objects.address)
        self._debts = Debts(book)
        self._closed = False
        self._settle()
        if self._budget.is_limited:
            self._sweep()

    def object_name(self, key: str) -> str:
        """What a segment's object is called.

        Raises:
            ValueError: ``key`` is not 40 lower-case hex digits.
        """
        return object_name(self._shard, key)

    @property
    def is_down(self) -> bool:
        """Whether the store is being left alone at present."""
        return self._line.is_down

    def get(self, key: str) -> Segment | None:  # noqa: D102 - as in the contract
        name = self.object_name(key)
        with self._meter.reading() as read:
            if key in self._debts:
                return None
            data = self._line.attempt("reading", lambda: self._objects.get(name))
            if data is None or key in self._debts:
                return None
            try:
                segment = self._coder.decode(data, key)
            except WrongKey as error:
                logger.warning("segment %s at %s is left alone: %s", key, self._line.address, error)
                self._meter.count("wrong_key")
                return None
            except CorruptSegment as error:
                logger.warning("segment %s at %s is removed: %s", key, self._line.address, error)
                self._meter.count("quarantined")
                self._line.attempt("removing", lambda: self._remove(key, everywhere=False))
                return None
            if self._budget.is_limited:
                self._used_at[key] = time.time()
            read.append(len(data))
        self._settle()
        return segment

    def put(self, segment: Segment) -> None:  # noqa: D102
        key, name = segment.key, self.object_name(segment.key)
        with self._meter.writing() as written:
            data = b"".join(self._coder.encode(segment))
            self._budget.check(key, len(data), segment.owner)
            replaced = self._write(key, name, data)
            written.append(len(data))
        self._settle()
        if self._budget.is_limited:
            self._used_at[key] = time.time()
        tag = Tag(segment.owner, segment.encode_tokens)
        if self._budget.added(key, len(data), replaced, tag):
            self._sweep(keep=key)

    def _write(self, key: str, name: str, data: bytes) -> int | None:
        owed = self._debts.begin_write(key)
        try:
            replaced = self._line.call(
                "writing",
                lambda: self._objects.put(name, data, self._ttl),
                on_late=lambda: self._landed(key, name),
            )
        except Unavailable as error:
            if owed is not None:
                self._debts.owe(key, everywhere=owed)
                self._debts.write_down(key)
            if not error.late:
                self._debts.end_write(key)
            raise StoreError(
                f"segment {key} ({len(data)} bytes) cannot be written to "
                f"{self._line.address}: {error}"
            ) from error.__cause__
        self._debts.end_write(key)
        return replaced

    def _landed(self, key: str, name: str) -> None:
        """In the thread of a write that nobody waits for any more: it is over."""
        if self._debts.end_write(key):
            self._objects.delete(name)
            self._debts.paid(key, everywhere=False)

    def contains(self, key: str) -> bool:
        """Whether the store has it; false if that cannot be found out."""
        name = self.object_name(key)
        if key in self._debts:
            return False
        return self._line.attempt("looking", lambda: self._objects.size(name)) is not None

    def locate(self, keys: Collection[str]) -> set[str]:
        """Which of ``keys`` the store has, under any shard, those owed a deletion included."""

        def looked() -> set[str]:
            shards = dict.fromkeys((self._shard, *self._objects.shards()))
            return {
                key
                for key in keys
                if any(self._objects.size(object_name(s, key)) is not None for s in shards)
            }

        try:
            return self._line.call("looking", looked, timeout_seconds=_LISTING_SECONDS)
        except Unavailable as error:
            raise StoreError(
                f"{self._line.address} cannot be asked for segments: {error}"
            ) from error.__cause__

    def delete(self, key: str) -> bool:  # noqa: D102
        return self._delete(key, everywhere=False) > 0

    def delete_everywhere(self, key: str) -> int:
        """Drop a segment under every model, rank and storage dtype in the store."""
        return self._delete(key, everywhere=True)

    def _delete(self, key: str, *, everywhere: bool) -> int:
        self.object_name(key)  # refuses what is no key
        self._debts.owe(key, everywhere=everywhere)
        try:
            removed = self._line.call("removing", lambda: self._remove(key, everywhere=everywhere))
        except Unavailable as error:
            self._debts.write_down(key)
            raise StoreError(
                f"segment {key} cannot be removed from {self._line.address}: {error}; "
                "it is not served any more, and removed as soon as the store answers"
            ) from error.__cause__
        if removed:
            self._meter.count("deletions")
        return removed

    def _remove(self, key: str, *, everywhere: bool) -> int:
        """Remove an object, and note it; on the store's threads. How many there were."""
        own = self.object_name(key)
        names = [own]
        if everywhere:
            others = (object_name(shard, key) for shard in self._objects.shards())
            names += [name for name in others if name != own]
        removed = 0
        for name in names:
            nbytes = self._objects.delete(name)
            removed += nbytes is not None
            if nbytes is not None and name == own:
                self._budget.dropped(key, nbytes)
                self._used_at.pop(key, None)
        self._debts.paid(key, everywhere=everywhere)
        return removed

    def _settle(self) -> None:
        """Carry out some of the deletions that are owed, if the store works."""
        if not len(self._debts) or self.is_down:
            return
        for key, everywhere in self._debts.payable(_SETTLED_AT_ONCE):
            try:
                self._line.call(
                    "removing",
                    lambda key=key, everywhere=everywhere: self._remove(  # type: ignore[misc]
                        key, everywhere=everywhere
                    ),
                )
            except Unavailable:
                return

    def keys(self) -> Iterator[str]:
        """The keys the store has; none if it does not answer."""
        return iter([stored.key for stored in self._listing() or ()])

    def clear(self) -> None:
        """Drop every segment of this model and rank that the store lists."""
        for stored in self._listing() or ():
            self._drop(stored.key)

    def close(self) -> None:
        """Make up for what is owed, if the store answers, and let go of it."""
        if self._closed:
            return
        self._closed = True
        while len(self._debts) and not self.is_down:
            before = len(self._debts)
            self._settle()
            if len(self._debts) == before:
                break
        if len(self._debts):
            logger.warning(
                "%d deletions are still owed to %s", len(self._debts), self._line.address
            )
        self._line.close()
        self._debts.close()
        self._objects.close()

    # -- budgets -----------------------------------------------------------------------------

    def _drop(self, key: str) -> bool:
        return bool(self._line.attempt("removing", lambda: self._remove(key, everywhere=False)))

    def _sweep(self, keep: str | None = None) -> None:
        """List the store; after a write, remove what is too much."""
        with self._sweeping:
            found = self._listing()
            if found is None:
                return
            if keep is None:
                self._budget.recount(found, self._read_tag)
                return
            for key in self._budget.victims(found, self._read_tag, keep=keep):
                if self._drop(key):
                    self._meter.count("evictions")

    def _listing(self) -> list[Stored] | None:
        """Everything of this model and rank; ``None`` if the store does not answer."""

        def listed() -> list[Stored]:
            found = []
            for stored in self._objects.objects(f"{self._shard}/"):
                key = key_of(stored.name)
                if key is not None:
                    used_at = self._used_at.get(key, stored.used_at)
                    found.append(Stored(key, stored.nbytes, used_at))
            return found

        return self._line.attempt("listing", listed, timeout_seconds=_LISTING_SECONDS)

    def _read_tag(self, key: str) -> Tag:
        """What eviction wants to know of an object that somebody else wrote."""
        name, nbytes = self.object_name(key), self._coder.head_bytes
        data = self._line.attempt(
            "reading",
            lambda: self._objects.get(name) if nbytes is None else self._objects.head(name, nbytes),
        )
        try:
            return Tag() if data is None else self._coder.tag(data, key)
        except (CorruptSegment, WrongKey):
            return Tag()  # of no use to this server: first to go
