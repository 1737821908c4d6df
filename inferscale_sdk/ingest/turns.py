"""Windows of both kinds: related facts first, then what was said right before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.windows import (
    DEFAULT_MAX_TOKENS,
    EncodeBatch,
    PrecedingTurns,
    WindowStrategy,
)
from inferscale_sdk.types import Fact

__all__ = ["RelatedTurns"]


class RelatedTurns(WindowStrategy):
    """Consecutive facts, captured together behind the facts before them and their relatives.

    What was said in the same hour tells a fact's time and talk; relatives tell its subject, however
    long ago they were said. Relatives stand in front, so that the talk is not torn apart.

    Args:
        w: Facts before the group, of the same conversation.
        related: Relatives of the group's facts, in turns the nearest of each.
        group: Consecutive facts captured in one request; as for :class:`PrecedingTurns`.
        relatives: Who knows relatives; ``Memory`` gives its index. Without, there are none.
        max_tokens: Tokens of one request at most.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        w: int = 10,
        related: int = 10,
        group: int | None = None,
        *,
        relatives: Relatives | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        self._turns = PrecedingTurns(w, group, max_tokens=max_tokens)
        self._near = RelatedFacts(related, relatives=relatives, max_tokens=max_tokens)
        self.related = related

    @property
    def name(self) -> str:
        """``related-<n>-preceding-<w>x<group>``."""
        return f"related-{self.related}-{self._turns.name}x{self._turns.group}"

    @property
    def max_tokens(self) -> int:
        """Tokens of one request at most."""
        return self._turns.max_tokens

    def bound(self, relatives: Relatives) -> WindowStrategy:
        """See :meth:`WindowStrategy.bound`; relatives given before stay."""
        bound = RelatedTurns(
            self._turns.w, self.related, self._turns.group, max_tokens=self.max_tokens
        )
        bound._near = self._near.bound(relatives)
        return bound

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Groups as :class:`PrecedingTurns` makes them, with relatives in front."""
        for batch in self._turns.batches(pending, store):
            there = {fact.id for fact in (*batch.window, *batch.facts)}
            near = self._relatives(batch.facts, there, store)
            yield EncodeBatch((*reversed(near), *batch.window), batch.facts)

    def _relatives(self, facts: Sequence[Fact], there: set[str], store: FactStore) -> list[Fact]:
        """The nearest of every fact, then the second nearest of every fact, and so on."""
        ranked = [self._near.nearest(fact, store, self.related + len(there)) for fact in facts]
        found: dict[str, Fact] = {}
        for rank in range(max(map(len, ranked), default=0)):
            for near in ranked:
                if rank < len(near) and near[rank].id not in there:
                    found.setdefault(near[rank].id, near[rank])
        return list(found.values())[: self.related]
