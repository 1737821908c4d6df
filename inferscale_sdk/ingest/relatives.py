"""Which facts are about the same things as a fact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.recall.base import RecallIndex, RecallQuery
from inferscale_sdk.types import Fact

__all__ = ["IndexRelatives", "Relatives"]

_AT_LEAST = 32


class Relatives(ABC):
    """Finds the facts nearest to a fact."""

    @abstractmethod
    def nearest(self, fact: Fact, n: int) -> list[Fact]:
        """Up to ``n`` live facts of the very same owner (app, user, agent and run), nearest first.

        Never the fact itself. Facts stored in the same batch count.

        Raises:
            InferScaleError: The index cannot be searched.
        """


class IndexRelatives(Relatives):
    """Asks the index that recall uses, so that nothing is embedded or kept twice.

    Args:
        store: What the index finds counts only if the store still has it.
        index: The index, brought up to date; called for every search.
    """

    def __init__(self, store: FactStore, index: Callable[[], RecallIndex]) -> None:
        self._store = store
        self._index = index

    def nearest(self, fact: Fact, n: int) -> list[Fact]:
        """See :meth:`Relatives.nearest`; by cosine similarity where the index has vectors."""
        if n < 1:
            return []
        index, wanted = self._index(), max(_AT_LEAST, 2 * n)
        while True:
            hits = index.search(RecallQuery(fact.text, fact.namespace, wanted))
            # The order of a fused index serves questions; nearness of facts is that of vectors.
            ranked = sorted(hits, key=lambda hit: -(hit.similarity or 0.0))
            found = self._of_same_owner(fact, [hit.fact_id for hit in ranked])
            # A scope covers other agents and runs, too: their facts may have taken the places.
            if len(found) >= n or len(hits) < wanted:
                return found[:n]
            wanted *= 4

    def _of_same_owner(self, fact: Fact, fact_ids: list[str]) -> list[Fact]:
        facts = self._store.get_many(fact_ids, fact.namespace)
        return [f for f in facts if f.namespace == fact.namespace and f.id != fact.id]
