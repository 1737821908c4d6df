"""The order in which recalled facts stand in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, get_args

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Fact

__all__ = ["FACT_ORDERS", "FactOrder", "arrange", "check_order"]

FactOrder: TypeAlias = Literal["best-last", "best-first", "time", "session"]
"""``best-last`` has the most relevant fact nearest to the question; ``time`` goes by when things
happened (were stored, where that is not known); ``session`` keeps together what was said in one
conversation, or under one ``metadata["session"]`` of it, as it was said, and puts the talk with the
most relevant fact last."""

FACT_ORDERS: tuple[FactOrder, ...] = get_args(FactOrder)


def check_order(order: str) -> FactOrder:
    """``order``, if there is such a one.

    Raises:
        ConfigurationError: There is not.
    """
    for known in FACT_ORDERS:
        if order == known:
            return known
    raise ConfigurationError(f"order={order!r} must be one of {', '.join(FACT_ORDERS)}")


def arrange(facts: Sequence[Fact], order: FactOrder) -> list[Fact]:
    """Put facts into the order of a prompt.

    Args:
        facts: The most relevant last.
        order: Which one is wanted.
    """
    return _ARRANGED[order](facts)


def _by_time(facts: Sequence[Fact]) -> list[Fact]:
    return sorted(facts, key=_when)


def _by_session(facts: Sequence[Fact]) -> list[Fact]:
    # A session's rank is that of its most relevant fact.
    rank = {_session(fact): i for i, fact in enumerate(facts)}
    return sorted(facts, key=lambda fact: (rank[_session(fact)], _when(fact)))


def _when(fact: Fact) -> tuple[datetime, int]:
    return fact.event_time or fact.created_at, fact.position


def _session(fact: Fact) -> Hashable:
    return fact.conversation_id, str(fact.metadata.get("session"))


_ARRANGED: dict[FactOrder, Callable[[Sequence[Fact]], list[Fact]]] = {
    "best-last": list,
    "best-first": lambda facts: list(reversed(facts)),
    "time": _by_time,
    "session": _by_session,
}
