"""Which facts stand before a fact while it is encoded, and which are captured together.

A fact encoded alone knows nothing of what was said around it. It is therefore encoded behind a
window of other facts, whose own KV is thrown away. Encoding one fact behind ``w`` others costs
``w + 1`` facts of prefill; capturing ``g`` consecutive facts in one request costs ``w + g`` for
all of them, and gives each at least the window it asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.types import Fact, Namespace

__all__ = ["DEFAULT_WINDOW", "EncodeBatch", "PrecedingTurns", "WindowStrategy"]

DEFAULT_WINDOW = 20
MIN_GROUP = 8
DEFAULT_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class EncodeBatch:
    """One encode request: ``facts`` are captured, in order, behind ``window``.

    Args:
        window: Facts that stand before, in prompt order; the last matters most, so that a window
            that is too long is cut at its start.
        facts: Facts to capture, at least one; each also sees those before it.
    """

    window: tuple[Fact, ...]
    facts: tuple[Fact, ...]


class WindowStrategy(ABC):
    """Turns waiting facts into encode requests.

    A window never crosses owners (app, user, agent and run), nor does a request: what one agent
    was told must not shape the KV that is served to another. What a strategy yields depends on
    its arguments alone: asked again with fewer facts it yields the same windows for them, which
    is how a request that is too long is split.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Part of the encoding profile: KV made by strategies of different names is not mixed."""

    @property
    def max_tokens(self) -> int:
        """Tokens of one encode request at most; only a single longer fact may pass it."""
        return DEFAULT_MAX_TOKENS

    @property
    def first_reading(self) -> WindowStrategy | None:
        """Reads the same facts before this strategy does; the mean of both readings is kept.

        ``None``, as here, where one reading is enough.
        """
        return None

    def bound(self, relatives: Relatives) -> WindowStrategy:
        """The same strategy, with somebody to ask for related facts, if it wants to know any.

        Args:
            relatives: Over the store whose facts it will see.
        """
        return self

    @abstractmethod
    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Requests that capture every fact of ``pending`` exactly once.

        Args:
            pending: Ordered by partition, conversation and position.
            store: Where windows come from.
        """


class PrecedingTurns(WindowStrategy):
    """The ``w`` turns before a fact, of the same conversation and owner (paper, section 3).

    Args:
        w: Facts in the window; 0 encodes each fact alone behind the header.
        group: Consecutive facts captured in one request; by default ``max(w, 8)``, which keeps
            the prefilled tokens near twice the facts' own, and 1 when ``w`` is 0.
        max_tokens: Tokens of one request at most; a group is split rather than pass it.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        w: int = DEFAULT_WINDOW,
        group: int | None = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        if w < 0:
            raise ConfigurationError(f"window w={w} is negative; use 0 for none")
        if group is not None and group < 1:
            raise ConfigurationError(f"group={group} must be at least 1")
        if max_tokens < 64:
            raise ConfigurationError(f"max_tokens={max_tokens} must be at least 64")
        self.w = w
        self.group = group if group is not None else (max(w, MIN_GROUP) if w else 1)
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """``preceding-<w>``."""
        return f"preceding-{self.w}"

    @property
    def max_tokens(self) -> int:
        """Tokens of one encode request at most."""
        return self._max_tokens

    def batches(self, pending: Sequence[Fact], store: FactStore) -> Iterator[EncodeBatch]:
        """Runs of consecutive facts, cut into groups, each behind the ``w`` facts before it."""
        for run in _consecutive(pending, store):
            for start in range(0, len(run), self.group):
                facts = tuple(run[start : start + self.group])
                window = store.preceding(facts[0], self.w) if self.w else []
                yield EncodeBatch(tuple(window), facts)


def _consecutive(pending: Sequence[Fact], store: FactStore) -> Iterator[list[Fact]]:
    """Cut what each owner said in a conversation where a fact does not follow the one before."""
    # Owners of one partition may take turns in a conversation.
    apart: dict[tuple[Namespace, str], list[Fact]] = {}
    for fact in pending:
        apart.setdefault((fact.namespace, fact.conversation_id), []).append(fact)
    for facts in apart.values():
        run: list[Fact] = []
        for fact in facts:
            if run and not _follows(run[-1], fact, store):
                yield run
                run = []
            run.append(fact)
        yield run


def _follows(before: Fact, fact: Fact, store: FactStore) -> bool:
    """Whether nothing of their owner stands between two facts of one conversation."""
    if fact.position == before.position + 1:
        return True
    # Positions have gaps where facts were deleted or are another owner's; only the store knows
    # what is left between.
    return [f.id for f in store.preceding(fact, 1)] == [before.id]
