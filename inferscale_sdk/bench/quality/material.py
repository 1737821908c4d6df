"""One conversation, remembered and searched by the product's own store and recall."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from inferscale_sdk.bench.quality.dataset import Conversation, Question
from inferscale_sdk.facts.base import FACTS_FILE
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.ingest.relatives import IndexRelatives, Relatives
from inferscale_sdk.recall.base import RECALL_FILE, Embedder, RecallQuery
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.recall.sync import sync
from inferscale_sdk.types import Fact, Namespace, NewFact

__all__ = ["ArrivalRelatives", "Evidence", "Material"]

Evidence: TypeAlias = Literal["natural", "guaranteed"]


class Material:
    """A conversation's facts in a store and an index of its own, kept in a folder.

    Args:
        conversation: What to remember.
        folder: Where store and index lie; a second run finds embeddings there.
        embedder: Makes the vectors.
        seed: Of what is drawn at random.
    """

    def __init__(
        self, conversation: Conversation, folder: Path, embedder: Embedder, *, seed: int
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.id = conversation.id
        self.owner = Namespace(user_id=conversation.id)
        self.store = SQLiteFactStore(folder / FACTS_FILE)
        if not self.store.count(self.owner):
            self.store.add(conversation.facts, self.owner)
        self.index = HybridRecall(folder / RECALL_FILE, embedder)
        sync(self.store, self.index)
        found = self.store.find(self.owner)
        self.facts: tuple[Fact, ...] = tuple(sorted(found, key=lambda fact: fact.position))
        self.summaries: dict[int, Fact] = {
            number: self._beside(told, number) for number, told in conversation.summaries.items()
        }
        self._seed = seed
        self._ranked: dict[str, list[Fact]] = {}

    @property
    def relatives(self) -> Relatives:
        """Over all facts."""
        return IndexRelatives(self.store, lambda: self.index)

    def _beside(self, told: NewFact, session: int) -> Fact:
        """A fact of this owner that no store has: nothing finds it, and windows can show it."""
        return replace(
            self.facts[0],
            id=f"fsummary{session}",
            text=told.text,
            event_time=told.event_time,
            speaker=told.speaker,
            source=told.source,
            metadata=told.metadata,
        )

    def ranked(self, question: Question) -> list[Fact]:
        """The facts recall has for a question, best first."""
        if question.id not in self._ranked:
            query = RecallQuery(question.text, self.owner, len(self.facts))
            ids = [hit.fact_id for hit in self.index.search(query)]
            self._ranked[question.id] = self.store.get_many(ids, self.owner)
        return self._ranked[question.id]

    def evidence(self, question: Question) -> list[Fact]:
        """The facts that come from a turn named as evidence."""
        wanted = set(question.evidence)
        return [fact for fact in self.facts if wanted & set((fact.source or "").split())]

    def recalled(self, question: Question, k: int, evidence: Evidence) -> list[Fact]:
        """The ``k`` facts given to the model, best first.

        Where evidence is guaranteed, what recall ranked below the first ``k`` takes the places of
        the worst of them, in the order of its rank.
        """
        ranked = self.ranked(question)
        chosen = ranked[:k]
        if evidence == "guaranteed":
            gold = self.evidence(question)[:k]
            have = {fact.id for fact in chosen}
            missing = [fact for fact in gold if fact.id not in have]
            keep = {fact.id for fact in gold}
            for fact in reversed(list(chosen)):
                if len(chosen) + len(missing) <= k:
                    break
                if fact.id not in keep:
                    chosen.remove(fact)
            rank = {fact.id: number for number, fact in enumerate(ranked)}
            chosen += sorted(missing, key=lambda fact: rank.get(fact.id, len(ranked)))
        return chosen

    def others(self, question: Question, k: int) -> list[Fact]:
        """``k`` random facts of the same store that are neither recalled nor evidence."""
        used = {fact.id for fact in self.recalled(question, k, "natural")}
        used |= {fact.id for fact in self.evidence(question)}
        left = [fact for fact in self.facts if fact.id not in used]
        draw = random.Random(f"{self._seed}/{question.id}/{k}")  # noqa: S311 - not a secret
        return draw.sample(left, min(k, len(left)))

    def close(self) -> None:
        """Release files."""
        self.index.close()
        self.store.close()


class ArrivalRelatives(Relatives):
    """Only facts that were there when a fact arrived, up to the session it arrived in.

    Args:
        material: The facts.
        same_session: Whether those of its own session count: facts stored in one batch.
    """

    def __init__(self, material: Material, *, same_session: bool) -> None:
        self._all = material.relatives
        self._n = len(material.facts)
        self._same_session = same_session

    def nearest(self, fact: Fact, n: int) -> list[Fact]:
        """See :meth:`Relatives.nearest`."""
        return [other for other in self._all.nearest(fact, self._n) if self._known(other, fact)][:n]

    def _known(self, other: Fact, fact: Fact) -> bool:
        if self._same_session:
            return int(other.metadata["session"]) <= int(fact.metadata["session"])
        return other.position < fact.position


def by_position(facts: Sequence[Fact]) -> list[Fact]:
    """In the order they were said."""
    return sorted(facts, key=lambda fact: fact.position)
