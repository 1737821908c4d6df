"""Windows that are compared with the product's and not offered by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.windows import EncodeBatch, WindowStrategy
from inferscale_sdk.types import Fact

__all__ = ["BehindSummary", "ReadTwice"]


class ReadTwice(WindowStrategy):
    """Facts stand in their own window, too: they are known by the time they are captured.

    Args:
        inner: Makes the batches.
    """

    def __init__(self, inner: WindowStrategy) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """That of the strategy, with ``-twice``."""
        return f"{self._inner.name}-twice"

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Its batches, each with its facts at the end of the window."""
        for batch in self._inner.batches(pending, store):
            yield EncodeBatch((*batch.window, *batch.facts), batch.facts)


class BehindSummary(WindowStrategy):
    """Each session's summary stands in front of the window of its facts.

    Args:
        inner: Makes the batches; those that pass a session's end are cut there.
        summaries: By session.
    """

    def __init__(self, inner: WindowStrategy, summaries: Mapping[int, Fact]) -> None:
        self._inner, self._summaries = inner, summaries

    @property
    def name(self) -> str:
        """That of the strategy, with ``-summary``."""
        return f"{self._inner.name}-summary"

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Its batches, each behind the summary of its session, if there is one."""
        for batch in self._inner.batches(pending, store):
            before = list(batch.window)
            for session, group in groupby(batch.facts, lambda fact: int(fact.metadata["session"])):
                facts = tuple(group)
                summary = self._summaries.get(session)
                yield EncodeBatch((*([summary] if summary else []), *before), facts)
                # The inner strategy had them see each other only where it wants a window at all.
                before = [*before, *facts] if batch.window else []
