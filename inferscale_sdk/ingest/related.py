"""Windows of related facts, instead of what happened to be said before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.windows import DEFAULT_MAX_TOKENS, EncodeBatch, WindowStrategy
from inferscale_sdk.types import Fact

__all__ = ["RelatedFacts"]

log = logging.getLogger(__name__)

DEFAULT_RELATED = 5


class RelatedFacts(WindowStrategy):
    """The facts nearest in meaning, the nearest last.

    Args:
        related: Relatives in the window.
        recent: Facts right before it in its conversation, put in front of the relatives.
        group: Facts captured in one request: a fact and its nearest among those that wait, behind
            the relatives of the first. One at a time costs ``related + 1`` facts of prefill for
            each; groups of ``g`` cost ``related / g + 1``.
        relatives: Who knows relatives; ``Memory`` gives its index. Without, or where the index
            fails, the facts before it stand in.
        max_tokens: Tokens of one request at most.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        related: int = DEFAULT_RELATED,
        *,
        recent: int = 0,
        group: int = 1,
        relatives: Relatives | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        if related < 1:
            raise ConfigurationError(
                f"related={related} must be at least 1; for none use PrecedingTurns"
            )
        if recent < 0:
            raise ConfigurationError(f"recent={recent} is negative; use 0 for none")
        if group < 1:
            raise ConfigurationError(f"group={group} must be at least 1")
        if max_tokens < 64:
            raise ConfigurationError(f"max_tokens={max_tokens} must be at least 64")
        self.related = related
        self.recent = recent
        self.group = group
        self._relatives = relatives
        self._max_tokens = max_tokens
        self._told = False

    @property
    def name(self) -> str:
        """``related-<n>``, with ``+<m>`` for recent facts, ``x<g>`` for groups."""
        recent = f"+{self.recent}" if self.recent else ""
        group = f"x{self.group}" if self.group > 1 else ""
        return f"related-{self.related}{recent}{group}"

    @property
    def max_tokens(self) -> int:
        """Tokens of one request at most."""
        return self._max_tokens

    def bound(self, relatives: Relatives) -> RelatedFacts:
        """See :meth:`WindowStrategy.bound`; relatives given before stay."""
        if self._relatives is not None:
            return self
        return RelatedFacts(
            self.related,
            recent=self.recent,
            group=self.group,
            relatives=relatives,
            max_tokens=self._max_tokens,
        )

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Recent facts, then relatives, the nearest last, then the fact or its group."""
        if self.group == 1:
            for fact in pending:
                near = self.nearest(fact, store, self.related)
                yield EncodeBatch(self._window(fact, near, store), (fact,))
            return
        waiting = {fact.id: fact for fact in pending}
        while waiting:
            fact = waiting.pop(next(iter(waiting)))
            yield self._grouped(fact, waiting, store)

    def _grouped(self, fact: Fact, waiting: dict[str, Fact], store: FactStore) -> EncodeBatch:
        """``fact`` last, behind the nearest that wait, which leave ``waiting``."""
        near = self.nearest(fact, store, self.related + self.group - 1)
        beside = [other for other in near if other.id in waiting][: self.group - 1]
        for other in beside:
            del waiting[other.id]
        taken = {other.id for other in beside}
        window = [other for other in near if other.id not in taken][: self.related]
        return EncodeBatch(self._window(fact, window, store), (*reversed(beside), fact))

    def _window(self, fact: Fact, near: Sequence[Fact], store: FactStore) -> tuple[Fact, ...]:
        chosen = {other.id for other in near}
        recent = store.preceding(fact, self.recent) if self.recent else []
        return (*(other for other in recent if other.id not in chosen), *reversed(near))

    def nearest(self, fact: Fact, store: FactStore, n: int) -> list[Fact]:
        """Up to ``n`` relatives, nearest first; the facts before it where none are known."""
        if self._relatives is not None:
            try:
                return self._relatives.nearest(fact, n)
            except Exception as error:  # an index that fails must not keep facts from being encoded
                level = logging.DEBUG if self._told else logging.WARNING
                self._told = True
                log.log(
                    level,
                    "no relatives of facts are known (%s); they are encoded behind the facts "
                    "before them",
                    type(error).__name__,
                )
        return list(reversed(store.preceding(fact, n)))
