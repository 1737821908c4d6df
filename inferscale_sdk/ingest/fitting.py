"""Makes encode requests fit the model's context and the strategy's budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.windows import EncodeBatch, WindowStrategy
from inferscale_sdk.prompt.base import EncodePlan
from inferscale_sdk.types import Fact

__all__ = ["ANSWER_TOKENS", "Fitted", "fit"]

ANSWER_TOKENS = 2
"""Tokens an encode request generates, because its answer rides on them."""

PlanBatch = Callable[[Sequence[Fact], Sequence[Fact]], EncodePlan]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A request that fits, or a fact that fits no request.

    Args:
        batch: What is encoded; ``facts`` is a single fact when ``plan`` is ``None``.
        plan: The request; ``None`` if the fact alone is longer than the context.
        n_tokens: Tokens of the request, or those the fact would need.
    """

    batch: EncodeBatch
    plan: EncodePlan | None
    n_tokens: int


def fit(
    batch: EncodeBatch,
    plan_batch: PlanBatch,
    strategy: WindowStrategy,
    store: FactStore,
    max_model_len: int,
) -> Iterator[Fitted]:
    """Yield requests for all facts of ``batch``.

    A batch that fits is planned once. Otherwise its facts are split so that they take at most
    half of the room, and the window keeps the rest of it, losing its most distant facts first:
    cutting the window alone would leave the first fact of a long group without any context.

    Args:
        batch: What the strategy wants.
        plan_batch: Plans ``(window, facts)``.
        strategy: Asked again for the windows of the parts.
        store: For the strategy.
        max_model_len: The model's context in tokens.
    """
    context = max_model_len - ANSWER_TOKENS
    budget = min(strategy.max_tokens, context)
    plan = plan_batch(batch.window, batch.facts)
    if len(plan.token_ids) <= budget:
        yield Fitted(batch, plan, len(plan.token_ids))
        return
    header, sizes = _measure((*batch.window, *batch.facts), plan_batch)
    own = sizes[len(batch.window) :]
    parts = list(_split(batch.facts, own, (budget - header) // 2))
    if len(parts) > 1:
        for part in parts:
            for smaller in strategy.batches(part, store):
                yield from fit(smaller, plan_batch, strategy, store, max_model_len)
        return
    needed = header + sum(own)
    if needed > context:
        yield Fitted(batch, None, needed)
        return
    room = (budget if needed <= budget else context) - needed
    window = _nearest(batch.window, sizes[: len(batch.window)], room)
    trimmed = EncodeBatch(window, batch.facts)
    plan = plan_batch(trimmed.window, trimmed.facts)
    yield Fitted(trimmed, plan, len(plan.token_ids))


def _measure(facts: Sequence[Fact], plan_batch: PlanBatch) -> tuple[int, list[int]]:
    """Tokens of the header, and of each fact: all are captured, so that the spans tell."""
    plan = plan_batch((), facts)
    spans = plan.op.captures[1:] if plan.captures_preamble else plan.op.captures
    starts = [span.start for span in spans]
    stops = [*starts[1:], len(plan.token_ids)]
    return starts[0], [stop - start for start, stop in zip(starts, stops, strict=True)]


def _split(facts: Sequence[Fact], sizes: Sequence[int], room: int) -> Iterator[tuple[Fact, ...]]:
    """Cut ``facts`` into parts of at most ``room`` tokens, or a single longer fact."""
    part: list[Fact] = []
    used = 0
    for fact, size in zip(facts, sizes, strict=True):
        if part and used + size > room:
            yield tuple(part)
            part, used = [], 0
        part.append(fact)
        used += size
    yield tuple(part)


def _nearest(window: tuple[Fact, ...], sizes: Sequence[int], room: int) -> tuple[Fact, ...]:
    """The longest end of ``window`` that takes at most ``room`` tokens."""
    kept = 0
    for size in reversed(sizes):
        if size > room:
            break
        room -= size
        kept += 1
    return window[len(window) - kept :]
