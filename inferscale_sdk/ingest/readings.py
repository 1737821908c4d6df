"""What has been read once and waits to be read again in another window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.recording import changed
from inferscale_sdk.ingest.windows import EncodeBatch
from inferscale_sdk.prompt.base import EncodePlan, Reading
from inferscale_sdk.types import Fact

__all__ = ["FirstReadings"]


class FirstReadings:
    """First readings of one run of the encoder, by fact id.

    They are in no record: the keys are noted before they are captured, so that those of a run that
    dies are found as orphans. A run that ends has them forgotten.

    Args:
        store: Has the ledger of keys.
    """

    def __init__(self, store: FactStore) -> None:
        self._store = store
        self._readings: dict[str, Reading] = {}
        self._unserved: dict[str, Fact] = {}

    @property
    def by_fact(self) -> Mapping[str, Reading]:
        """What has been read."""
        return self._readings

    @property
    def unserved(self) -> tuple[Fact, ...]:
        """Facts that no second reading was tried for."""
        return tuple(self._unserved.values())

    def take(self, batch: EncodeBatch, plan: EncodePlan, stored: Collection[str]) -> set[str]:
        """Keep in mind what a request captured.

        Returns:
            Ids of the facts of ``batch`` whose key is among those ``stored``.
        """
        captures = plan.op.captures[1:] if plan.captures_preamble else plan.op.captures
        taken, before = set(), list(batch.window)
        for fact, span, name in zip(batch.facts, captures, plan.reading_names, strict=True):
            if span.key in stored:
                self._readings[fact.id] = Reading(span.key, name, tuple(before))
                self._unserved[fact.id] = fact
                taken.add(fact.id)
            before.append(fact)
        return taken

    def serve(self, facts: Iterable[Fact]) -> tuple[Fact, ...]:
        """A second reading of these facts is tried; what stood before them in the first."""
        before: list[Fact] = []
        for fact in facts:
            self._unserved.pop(fact.id, None)
            if fact.id in self._readings:
                before += self._readings[fact.id].before
        return tuple(before)

    def drop_changed(self) -> int:
        """Queue to be forgotten what was read of, or behind, a fact that has changed since.

        Returns:
            How many.

        Raises:
            StoreError: The store failed.
        """
        facts = [fact for reading in self._readings.values() for fact in reading.before]
        gone = set(changed(self._store, (*self._unserved.values(), *facts)))
        stale = [
            fact_id
            for fact_id, reading in self._readings.items()
            if fact_id in gone or any(fact.id in gone for fact in reading.before)
        ]
        for fact_id in stale:
            self._unserved.pop(fact_id, None)
        return len(self._store.queue_forget([self._readings.pop(i).key for i in stale]))

    def drop(self) -> list[str]:
        """Queue all to be forgotten; returns their keys.

        Raises:
            StoreError: The store failed.
        """
        readings, self._readings, self._unserved = self._readings, {}, {}
        keys = [reading.key for reading in readings.values()]
        return self._store.queue_forget(keys) if keys else []
