"""Which of the best facts stay text, behind the injected ones.

A live fact is computed with every request and sees all the others. That costs its tokens each time,
however many facts are injected, and makes answers better; docs/quality.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferscale_sdk.types import Fact

__all__ = ["LIVE_TOKENS", "n_live"]

LIVE_TOKENS = 64
"""A longer fact is not chosen by default: chunks of documents would cost what injection saves."""


def n_live(facts: Sequence[Fact], wanted: int | None, count_tokens: Callable[[Fact], int]) -> int:
    """How many of the facts stay text.

    Args:
        facts: The best first.
        wanted: So many; ``None`` for the best one, unless it is the only one or longer than
            :data:`LIVE_TOKENS`.
        count_tokens: Length of a fact's line.
    """
    if wanted is not None:
        return min(wanted, len(facts))
    return int(len(facts) > 1 and count_tokens(facts[0]) <= LIVE_TOKENS)
