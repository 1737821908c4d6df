"""Writes down which facts have KV now, and takes it back if their window changed meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from inferscale_sdk.facts.base import EncodingRecord, FactStore
from inferscale_sdk.ingest.windows import EncodeBatch
from inferscale_sdk.prompt.base import EncodePlan
from inferscale_sdk.types import Fact

__all__ = ["changed", "record"]


def record(
    store: FactStore,
    batch: EncodeBatch,
    plan: EncodePlan,
    *,
    profile: str,
    stored: Collection[str],
    seq: int,
    before: Collection[Fact] = (),
) -> list[EncodingRecord]:
    """Record the facts whose capture was stored.

    Args:
        store: The ledger.
        batch: The facts as they were when the request was planned.
        plan: The request.
        profile: What the KV is good for.
        stored: Keys the engine has now.
        seq: ``store.last_seq()`` before ``batch`` was read.
        before: What stood before these facts in their first reading.

    Returns:
        The records, including those the store refused because their fact had changed.
    """
    records = _records(batch, plan, profile, stored)
    store.record_encodings(records)
    if store.last_seq() != seq:
        # A fact's record is dropped when a fact of its window changes, but a change that came
        # before the record was written found nothing to drop.
        stale = changed(store, (*batch.window, *batch.facts, *before))
        if stale:
            store.invalidate(stale)
    return records


def _records(
    batch: EncodeBatch, plan: EncodePlan, profile: str, stored: Collection[str]
) -> list[EncodingRecord]:
    now = datetime.now(UTC)
    captures = plan.op.captures[1:] if plan.captures_preamble else plan.op.captures
    versions = {fact.id: fact.version for fact in batch.facts}
    return [
        EncodingRecord(
            fact_id=fact_id,
            version=versions[fact_id],
            profile=profile,
            key=span.key,
            n_tokens=span.stop - span.start,
            context_fact_ids=context,
            created_at=now,
        )
        for fact_id, context, span in zip(
            plan.fact_ids, plan.context_fact_ids, captures, strict=True
        )
        if span.key in stored
    ]


def changed(store: FactStore, facts: Collection[Fact]) -> list[str]:
    """Ids of those that no longer read as they did, or are gone.

    Args:
        store: Has them as they are now.
        facts: As they were read. There may be several versions of one: each must hold.
    """
    now = {fact.id: fact for fact in store.current(list({fact.id for fact in facts}))}
    stale = (
        fact.id
        for fact in facts
        if fact.id not in now or _line_inputs(now[fact.id]) != _line_inputs(fact)
    )
    return list(dict.fromkeys(stale))


def _line_inputs(fact: Fact) -> tuple[object, ...]:
    """What a fact's tokens are made from."""
    return fact.text, fact.speaker, fact.event_time
