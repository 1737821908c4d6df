"""What has been read once and waits to be read again in another window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from inferscale_sdk.facts.base import FactStore
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

    @property
    def by_fact(self) -> Mapping[str, Reading]:
        """What has been read."""
        return self._readings

    def take(self, batch: EncodeBatch, plan: EncodePlan, stored: Collection[str]) -> set[str]:
        """Keep in mind what a request captured.

        Returns:
            Ids of the facts of ``batch`` whose key is among those ``stored``.
        """
        captures = plan.op.captures[1:] if plan.captures_preamble else plan.op.captures
        taken, before = set(), list(batch.window)
        for fact, span in zip(batch.facts, captures, strict=True):
            if span.key in stored:
                self._readings[fact.id] = Reading(span.key, tuple(before))
                taken.add(fact.id)
            before.append(fact)
        return taken

    def before(self, facts: Iterable[Fact]) -> tuple[Fact, ...]:
        """What stood before these facts in their first reading."""
        read = (self._readings.get(fact.id) for fact in facts)
        return tuple(other for reading in read if reading is not None for other in reading.before)

    def drop(self) -> int:
        """Queue all to be forgotten; returns how many.

        Raises:
            StoreError: The store failed.
        """
        readings, self._readings = self._readings, {}
        return len(self._store.queue_forget([reading.key for reading in readings.values()]))
