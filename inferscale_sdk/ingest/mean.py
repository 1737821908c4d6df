"""Each fact is read in two windows, and the mean of both readings is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.windows import EncodeBatch, WindowStrategy
from inferscale_sdk.types import Fact

__all__ = ["MeanOfWindows"]


class MeanOfWindows(WindowStrategy):
    """Facts are encoded behind one window and behind another; their KV is the mean of both.

    What a fact is read behind leaves traces in its KV that have nothing to do with the prompt it
    will stand in. Two windows that differ leave different traces, and the mean has half of each.
    Encoding costs what both windows cost together; serving costs nothing more.

    Args:
        first: The first reading's windows.
        second: The second reading's, of another kind.

    Raises:
        ConfigurationError: Both are the same, or one is itself a mean.
    """

    def __init__(self, first: WindowStrategy, second: WindowStrategy) -> None:
        for strategy in (first, second):
            if strategy.first_reading is not None:
                raise ConfigurationError(
                    f"a mean of the mean {strategy.name!r}; give two windows of other kinds"
                )
        if first.name == second.name:
            raise ConfigurationError(
                f"both windows are {first.name!r}; give two that differ, or one alone"
            )
        self._first, self._second = first, second

    @property
    def name(self) -> str:
        """``mean-of-<first>-and-<second>``."""
        return f"mean-of-{self._first.name}-and-{self._second.name}"

    @property
    def first_reading(self) -> WindowStrategy:
        """The first reading's strategy."""
        return self._first

    @property
    def second_reading(self) -> WindowStrategy:
        """The second reading's strategy."""
        return self._second

    @property
    def max_tokens(self) -> int:
        """Tokens of one request of the second reading at most."""
        return self._second.max_tokens

    def bound(self, relatives: Relatives) -> WindowStrategy:
        """See :meth:`WindowStrategy.bound`."""
        return MeanOfWindows(self._first.bound(relatives), self._second.bound(relatives))

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """The second reading's requests."""
        yield from self._second.batches(pending, store)
