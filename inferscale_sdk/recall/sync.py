"""Brings an index up to date from the fact store's change feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.recall.base import RecallIndex
from inferscale_sdk.types import Fact, FactEvent

__all__ = ["ChangeFeed", "sync"]

PAGE = 500


class ChangeFeed(Protocol):
    """What recall needs of a fact store; every ``FactStore`` has it."""

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
        StoreError: The index is ahead of the store, so it was made from another one.
        ConfigurationError: ``page`` is below 1.
    """
    if page < 1:
        raise ConfigurationError(f"page={page!r}; give a whole number from 1")
    cursor = index.cursor()
    newest = feed.last_seq()
    if cursor > newest:
        raise StoreError(
            f"the recall index has seen change {cursor}, the fact store's last one is {newest}: "
            "they do not belong together (was one of them restored from a backup?); delete the "
            "recall file, it is made again from the facts"
        )
    handled = 0
    while cursor < newest:
        events = feed.changes(cursor, page)
        if not events:
            break
        _apply(feed, index, list(dict.fromkeys(event.fact_id for event in events)))
        cursor = events[-1].seq
        handled += len(events)
        # Another process may have come further meanwhile; its cursor stands.
        if cursor > index.cursor():
            index.set_cursor(cursor)
    return handled


def _apply(feed: ChangeFeed, index: RecallIndex, fact_ids: list[str]) -> None:
    live = feed.current(fact_ids)
    index.upsert(live)
    # Embedding took its time. A fact deleted during it may already have been removed by another
    # process, before we put it in; whoever deletes after this second look also removes after us.
    alive = {fact.id for fact in feed.current(fact_ids)}
    index.remove([fact_id for fact_id in fact_ids if fact_id not in alive])
