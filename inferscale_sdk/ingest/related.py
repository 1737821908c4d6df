"""Windows of related facts, instead of what happened to be said before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from inferscale_sdk.errors import ConfigurationError, InferScaleError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.windows import DEFAULT_MAX_TOKENS, EncodeBatch, WindowStrategy
from inferscale_sdk.types import Fact

__all__ = ["RelatedFacts"]

log = logging.getLogger(__name__)

DEFAULT_RELATED = 5


class RelatedFacts(WindowStrategy):
    """The facts nearest in meaning, the nearest last, each fact in a request of its own.

    Args:
        related: Relatives in the window.
        recent: Facts right before it in its conversation, put in front of the relatives.
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
        relatives: Relatives | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        if related < 1:
            raise ConfigurationError(
                f"related={related} must be at least 1; for none use PrecedingTurns"
            )
        if recent < 0:
            raise ConfigurationError(f"recent={recent} is negative; use 0 for none")
        if max_tokens < 64:
            raise ConfigurationError(f"max_tokens={max_tokens} must be at least 64")
        self.related = related
        self.recent = recent
        self._relatives = relatives
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """``related-<n>``, with ``+<m>`` for recent facts."""
        return f"related-{self.related}" + (f"+{self.recent}" if self.recent else "")

    @property
    def max_tokens(self) -> int:
        """Tokens of one request at most."""
        return self._max_tokens

    def bound(self, relatives: Relatives) -> WindowStrategy:
        """See :meth:`WindowStrategy.bound`; relatives given before stay."""
        if self._relatives is not None:
            return self
        return RelatedFacts(
            self.related, recent=self.recent, relatives=relatives, max_tokens=self._max_tokens
        )

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """One request for each fact: recent facts, then relatives, the nearest last."""
        for fact in pending:
            yield EncodeBatch(tuple(self._window(fact, store)), (fact,))

    def _window(self, fact: Fact, store: FactStore) -> list[Fact]:
        near = list(reversed(self._nearest(fact, store)))
        chosen = {other.id for other in near}
        recent = store.preceding(fact, self.recent) if self.recent else []
        return [*(other for other in recent if other.id not in chosen), *near]

    def _nearest(self, fact: Fact, store: FactStore) -> list[Fact]:
        """Nearest first."""
        if self._relatives is not None:
            try:
                return self._relatives.nearest(fact, self.related)
            except InferScaleError as error:
                log.warning(
                    "no relatives for fact %s (%s); it is encoded behind the facts before it",
                    fact.id,
                    type(error).__name__,
                )
        return list(reversed(store.preceding(fact, self.related)))
