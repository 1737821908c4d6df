"""In which order requests go out, so that whatever slows the machine down slows all arms."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from inferscale_sdk.bench.speed.arms import Arm

__all__ = ["interleave"]

Case = TypeVar("Case")


def interleave(cases: Sequence[Case], arms: Sequence[Arm], seed: int) -> Iterator[tuple[Case, Arm]]:
    """One round: every case in every arm, shuffled.

    The arms of one case follow one another in random order, so that whatever slows the machine
    down for a while slows all of them. The ceiling comes after memory as text, which may have left
    the ceiling's prompt in vLLM's prefix cache.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    shuffled = list(cases)
    rng.shuffle(shuffled)
    for case in shuffled:
        order = rng.sample(list(arms), len(arms))
        if Arm.PROMPT in order and Arm.CACHED in order:
            text, ceiling = order.index(Arm.PROMPT), order.index(Arm.CACHED)
            if ceiling < text:
                order[text], order[ceiling] = Arm.CACHED, Arm.PROMPT
        for arm in order:
            yield case, arm
