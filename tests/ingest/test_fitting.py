from __future__ import annotations

import pytest

from inferscale_sdk.ingest.fitting import ANSWER_TOKENS, fit
from inferscale_sdk.ingest.windows import EncodeBatch, PrecedingTurns

PARTITION = '[null,"u","alice"]'


@pytest.fixture
def plan_batch(planner):
    def plan(window, facts):
        return planner.plan_encode(
            window, facts, fingerprint="fp", partition=PARTITION, capture_preamble=True
        )

    return plan


def fitted(batch, plan_batch, store, *, strategy=None, context=100_000):
    return list(fit(batch, plan_batch, strategy or PrecedingTurns(20), store, context))


def test_what_fits_is_left_alone(store, add, plan_batch):
    facts = add(8)
    batch = EncodeBatch(tuple(facts[:4]), tuple(facts[4:]))
    (only,) = fitted(batch, plan_batch, store)
    assert only.batch == batch
    assert only.plan.fact_ids == tuple(f.id for f in facts[4:])
    assert only.n_tokens == len(only.plan.token_ids)


@pytest.mark.parametrize("context", [200, 300, 450, 700, 1000, 1500])
def test_parts_fit_the_context_and_capture_everything(store, add, plan_batch, context):
    facts = add(40)
    batch = EncodeBatch(tuple(facts[:20]), tuple(facts[20:]))
    parts = fitted(batch, plan_batch, store, context=context)
    assert [f for p in parts for f in p.batch.facts] == facts[20:]
    for part in parts:
        assert part.plan is not None
        assert len(part.plan.token_ids) <= context - ANSWER_TOKENS


def test_a_split_group_keeps_a_window(store, add, plan_batch):
    facts = add(40)
    batch = EncodeBatch(tuple(facts[:20]), tuple(facts[20:]))
    parts = fitted(batch, plan_batch, store, context=700)
    assert len(parts) > 1
    for part in parts:
        assert part.batch.window, "a fact without any context"
        nearest = facts.index(part.batch.facts[0])
        got = list(part.batch.window)
        assert got == facts[nearest - len(got) : nearest], "the most distant facts go first"


def test_the_budget_splits_too(store, add, plan_batch):
    facts = add(40)
    strategy = PrecedingTurns(20, max_tokens=600)
    batch = EncodeBatch(tuple(facts[:20]), tuple(facts[20:]))
    parts = fitted(batch, plan_batch, store, strategy=strategy)
    assert all(p.n_tokens <= 600 for p in parts)


def test_a_fact_longer_than_the_budget_is_encoded_within_the_context(store, add, plan_batch):
    facts = add(0, texts=["short"] * 3 + ["x" * 900])
    strategy = PrecedingTurns(20, max_tokens=300)
    (part,) = fitted(
        EncodeBatch(tuple(facts[:3]), (facts[3],)), plan_batch, store, strategy=strategy
    )
    assert part.plan is not None
    assert part.batch.window == tuple(facts[:3]), "the context has room for it"


def test_a_fact_longer_than_the_context_is_named(store, add, plan_batch):
    facts = add(0, texts=["before", "x" * 900, "after"])
    parts = fitted(EncodeBatch((), tuple(facts)), plan_batch, store, context=600)
    lost = [p for p in parts if p.plan is None]
    assert [p.batch.facts for p in lost] == [(facts[1],)]
    assert lost[0].n_tokens > 600
    assert [f for p in parts if p.plan for f in p.batch.facts] == [facts[0], facts[2]]
