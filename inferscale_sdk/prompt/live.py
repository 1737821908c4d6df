"""Which of the best facts stay text, behind the injected ones.

A live fact is computed with every request and sees all the others. That costs its tokens each time,
however many facts are injected, and makes answers better; docs/quality.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferscale_sdk.prompt.order import FactOrder
from inferscale_sdk.types import Fact

__all__ = ["LIVE_TOKENS", "n_live"]

LIVE_TOKENS = 64
"""A longer fact is not chosen by default: chunks of documents would cost what injection saves."""


def n_live(
    facts: Sequence[Fact],
    wanted: int | None,
    count_tokens: Callable[[Fact], int],
    order: FactOrder,
) -> int:
    """How many of the facts stay text.

    Args:
        facts: The best first.
        wanted: So many; ``None`` for the best one, unless it is the only one, longer than
            :data:`LIVE_TOKENS`, or another order is wanted, which it would break.
        count_tokens: Length of a fact's line.
        order: In which facts stand in the prompt.
    """
    if wanted is not None:
        return min(wanted, len(facts))
    if order != "best-last" or len(facts) < 2:
        return 0
    return int(count_tokens(facts[0]) <= LIVE_TOKENS)
