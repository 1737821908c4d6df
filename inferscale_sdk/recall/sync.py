"""Brings an index up to date from the fact store's change feed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Protocol

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall.base import RecallIndex
from inferscale_sdk.types import Fact, FactEvent

__all__ = ["ChangeFeed", "erase", "sync"]

log = logging.getLogger(__name__)

# One batch of the embedder: what was deleted meanwhile is then looked for right after it was
# written, not after the embedding of a further batch.
PAGE = 256


class ChangeFeed(Protocol):
    """What recall needs of a fact store; every ``FactStore`` has it."""

    @property
    def store_id(self) -> str:
        """Tells this store from every other."""
        ...

    def last_seq(self) -> int:
        """The highest ``seq`` so far."""
        ...

    def changes(self, after_seq: int, limit: int = 1000) -> list[FactEvent]:
        """Events with ``seq > after_seq``, oldest first."""
        ...

    def current(self, fact_ids: Sequence[str]) -> list[Fact]:
        """Those of the facts that are live, in their current version."""
        ...


def sync(feed: ChangeFeed, index: RecallIndex, *, page: int = PAGE) -> int:
    """Apply to the index what changed in the store since the index's cursor.

    Cheap when nothing changed. May be repeated, interrupted, and run by several threads and
    processes at once: events only say which facts to look at, what is indexed is always the
    store's present state, and the cursor moves only after the index has it.

    Args:
        feed: The fact store.
        index: The index.
        page: Events handled at a time.

    Returns:
        How many events were handled.

    Raises:
        ConfigurationError: ``page`` is below 1.
    """
    if page < 1:
        raise ConfigurationError(f"page={page!r}; give a whole number from 1")
    cursor = _start(feed, index)
    newest = feed.last_seq()
    handled = 0
    while cursor < newest:
        events = feed.changes(cursor, page)
        if not events:
            break
        _apply(feed, index, list(dict.fromkeys(event.fact_id for event in events)))
        handled += len(events)
        reached = index.cursor()
        if reached < cursor:  # emptied meanwhile: what was indexed before is gone
            cursor = reached
            continue
        cursor = events[-1].seq
        # Another process may have come further meanwhile; its cursor stands.
        if cursor > reached:
            index.set_cursor(cursor, _mark(feed.store_id, events[-1]))
    return handled


def erase(feed: ChangeFeed, index: RecallIndex) -> None:
    """Drop everything from the index; what the store still has is indexed by the next sync."""
    while not index.restart(index.place()[1], _mark(feed.store_id, None)):
        pass


def _start(feed: ChangeFeed, index: RecallIndex) -> int:
    """The cursor to go on from: 0, with an empty index, if it was made from other events.

    The cursor alone does not tell. After a restore of an older backup the store numbers new
    events as it numbered those that are lost, and a store made anew begins at 1 again; what the
    index has skipped would then never be found.
    """
    cursor, mark = index.place()
    if mark == _mark_at(feed, cursor):
        return cursor
    if index.restart(mark, _mark(feed.store_id, None)) and cursor:
        log.warning(
            "the recall index was made from another fact store or another state of it "
            "(its last change is %d, the store's %d); it is made again from the facts",
            cursor,
            feed.last_seq(),
        )
    return index.cursor()


def _mark_at(feed: ChangeFeed, seq: int) -> str | None:
    """The mark of event ``seq``, ``None`` if the store has no such event."""
    if seq == 0:
        return _mark(feed.store_id, None)
    events = feed.changes(seq - 1, 1)
    return _mark(feed.store_id, events[0]) if events and events[0].seq == seq else None


def _mark(store_id: str, event: FactEvent | None) -> str:
    """Names the store and an event of it; neither its texts, which a hard delete erases."""
    what = (
        [store_id]
        if event is None
        else [store_id, event.seq, event.fact_id, event.version, event.kind, event.at.isoformat()]
    )
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()


def _apply(feed: ChangeFeed, index: RecallIndex, fact_ids: list[str]) -> None:
    live = feed.current(fact_ids)
    index.upsert(live)
    # Embedding took its time. A fact deleted during it may already have been removed by another
    # process, before we put it in; whoever deletes after this second look also removes after us.
    alive = {fact.id for fact in feed.current(fact_ids)}
    index.remove([fact_id for fact_id in fact_ids if fact_id not in alive])
