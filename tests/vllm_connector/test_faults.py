"""Files lost or damaged, loads failing, forgetting, preemption: the answer is always right."""

from __future__ import annotations

import pytest
from connector_harness import Harness, key_of

from inferscale_sdk.protocol import (
    ForgetOp,
    InjectOp,
    PrefetchOp,
    SegmentRef,
    StatsOp,
    salt_suffix,
)


@pytest.fixture
def memory(harness: Harness, prose: list[int], request) -> tuple[list[int], list[tuple[str, int]]]:
    """A prompt of 400 tokens covered by eight segments, and those segments."""
    tag = request.node.name
    bounds = [(i * 50, i * 50 + 50) for i in range(8)]
    keys = harness.encode(prose[:400], bounds, tag=tag)
    return prose[:430], [(key, 50) for key in keys]


def files(harness: Harness, key: str) -> list:
    return list(harness.disk.rglob(f"{key}*.ifs"))


def test_after_a_restart_segments_come_from_disk(harness, memory) -> None:
    prompt, segments = memory
    before = harness.inject(prompt, segments, n=6, logprobs=3)
    harness.drop_resident()
    after = harness.inject(prompt, segments, n=6, logprobs=3)
    assert after.n_cached == before.n_cached == 400
    assert after.logprobs == before.logprobs


def test_a_hint_starts_reading_and_changes_no_answer(harness, memory) -> None:
    prompt, segments = memory
    before = harness.inject(prompt, segments, n=6, logprobs=3)
    keys = tuple(key for key, _ in segments)
    harness.drop_resident()
    hint = harness.ask([5], PrefetchOp(keys=(*keys, keys[0], "d" * 40)), n=1).answer
    assert (hint["resident"], hint["fetching"]) == (0, len(keys) + 1)
    for _ in range(200):
        if all(key in harness.worker._resident for key in keys):
            break
        harness.ask([5], n=2)
    again = harness.ask([5], PrefetchOp(keys=keys), n=1).answer
    assert (again["resident"], again["fetching"]) == (len(keys), 0)
    reads = harness.worker._below.stats().hits
    after = harness.inject(prompt, segments, n=6, logprobs=3)
    assert harness.worker._below.stats().hits == reads
    assert after.n_cached == before.n_cached == 400
    assert after.logprobs == before.logprobs
    assert harness.scheduler._core.index.stats()["pinned_bytes"] == 0


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "missing"])
def test_damaged_file_is_prefilled_and_quarantined(harness, memory, damage) -> None:
    prompt, segments = memory
    plain = harness.ask(prompt, n=6)
    harness.drop_resident()
    victim = segments[3][0]
    (path,) = files(harness, victim)
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif damage == "truncate":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    out = harness.inject(prompt, segments, n=6)
    assert out.n_cached == 150  # the segments before it
    assert out.answer["missing_keys"] == [victim]
    assert out.answer["reason"] == "missing"
    assert out.token_ids == plain.token_ids
    assert not path.exists()
    # Encoded again, it is whole again.
    keys = harness.encode(prompt[:400], [(150, 200)], tag=f"again-{damage}")
    healed = [*segments[:3], (keys[0], 50), *segments[4:]]
    assert harness.inject(prompt, healed).n_cached == 400


@pytest.mark.field_fault(2)
def test_load_failing_in_the_worker_is_recomputed(harness, memory, monkeypatch) -> None:
    """vLLM's recompute policy after a rejected synchronous load, on the pinned version."""
    prompt, segments = memory
    plain = harness.ask(prompt, n=8, logprobs=3)

    def broken(plan, resident) -> None:
        raise OSError("simulated")

    monkeypatch.setattr(harness.worker._loader, "load", broken)
    failed = harness.inject(prompt, segments, n=8, logprobs=3)
    assert failed.answer["reason"] == "load_failed"
    assert failed.answer["loaded_tokens"] == 0
    assert failed.token_ids == plain.token_ids
    assert failed.logprobs == plain.logprobs
    monkeypatch.undo()
    assert harness.inject(prompt, segments).n_cached == 400


@pytest.mark.field_fault(2)
def test_half_written_load_is_recomputed(harness, memory, monkeypatch) -> None:
    """A load that dies after some layers must not leave its half in an answer."""
    prompt, segments = memory
    plain = harness.ask(prompt, n=8, logprobs=3)
    harness.write_layer_by_layer(monkeypatch)
    stack = type(harness.worker._stack)
    write = stack.write

    def dies(self, layer, keys, values, slots) -> None:
        if layer == 11:
            raise RuntimeError("simulated")
        write(self, layer, keys * 0, values * 0, slots)

    monkeypatch.setattr(stack, "write", dies)
    failed = harness.inject(prompt, segments, n=8, logprobs=3)
    assert failed.answer["reason"] == "load_failed"
    assert failed.logprobs == plain.logprobs


def test_planning_failure_is_recomputed(harness, memory, monkeypatch) -> None:
    from inferscale_sdk.vllm_connector.jobs.inject import InjectJob

    prompt, segments = memory
    plain = harness.ask(prompt, n=8, logprobs=3)

    def broken(self, block_ids, n_external) -> None:
        raise RuntimeError("simulated")

    monkeypatch.setattr(InjectJob, "allocated", broken)
    failed = harness.inject(prompt, segments, n=8, logprobs=3)
    assert failed.logprobs == plain.logprobs


def test_forget_reaches_memory_and_disk(harness, memory) -> None:
    prompt, segments = memory
    keys = tuple(key for key, _ in segments)
    out = harness.ask([5], ForgetOp(keys=(*keys, "c" * 40)))
    assert out.answer["forgotten"] == len(keys)
    assert not any(files(harness, key) for key in keys)
    assert not any(key in harness.worker._resident for key in keys)
    after = harness.inject(prompt, segments)
    assert after.n_cached == 0
    assert after.answer["missing_keys"] == list(keys)
    assert harness.ask([5], ForgetOp(keys=keys)).answer["forgotten"] == 0


def test_budget_evicts_the_oldest_and_disk_brings_it_back(harness, memory) -> None:
    prompt, segments = memory
    index = harness.scheduler._core.index
    ledger = index._ledger
    capacity = ledger._capacity
    ledger._capacity = ledger.used_bytes  # full
    try:
        keys = harness.encode(prompt[:400], [(i * 50, i * 50 + 50) for i in range(8)], tag="new")
        assert index.evictions > 0
        assert index.stats()["used_bytes"] <= ledger._capacity
        assert set(harness.worker._resident) == set(index._resident)
        assert harness.inject(prompt, [(key, 50) for key in keys]).n_cached == 400
        assert harness.inject(prompt, segments).n_cached == 400
    finally:
        ledger._capacity = capacity


@pytest.mark.field_fault(18)
def test_nothing_stays_pinned(harness, memory) -> None:
    prompt, segments = memory
    harness.ask_many([(prompt, *harness.inject_op(segments)) for _ in range(20)], n=3)
    assert harness.scheduler._core.index.stats()["pinned_bytes"] == 0
    assert not harness.scheduler._jobs
    assert not harness.scheduler._leaving


def test_one_token_answers_are_reported_by_stats(harness, memory) -> None:
    prompt, segments = memory
    op, salt = harness.inject_op(segments)
    op = op.model_copy(update={"report_id": "r1"})
    out = harness.ask(prompt, op, salt=salt, n=1)
    assert out.answer["claimed_tokens"] == 400
    stats = harness.ask([5], StatsOp(report_ids=("r1", "unknown"))).answer
    assert list(stats["reports"]) == ["r1"]
    assert stats["reports"]["r1"]["loaded_tokens"] == 400
    assert stats["reports"]["r1"]["loaded_keys"] == [key for key, _ in segments]


@pytest.mark.field_fault(3)
def test_preempted_requests_inject_again(harness, prose) -> None:
    """More requests than the cache has blocks: vLLM preempts, and asks the connector again."""
    bounds = [(0, 300), (300, 620)]
    prompt = prose[:640]
    keys = harness.encode(prompt, bounds, tag="preempt")
    segments = [(key, b - a) for key, (a, b) in zip(keys, bounds, strict=True)]
    alone = harness.inject(prompt, segments, n=150)
    with harness.few_blocks(36) as preempted:
        outs = harness.ask_many([(prompt, *harness.inject_op(segments)) for _ in range(6)], n=150)
    assert preempted, "the cache was not small enough to preempt"
    for out in outs:
        # After a preemption some blocks may be found in vLLM's own cache.
        assert out.answer["claimed_tokens"] + out.answer["local_tokens"] == 620
    assert {tuple(out.token_ids[:20]) for out in outs} == {tuple(alone.token_ids[:20])}
    assert harness.scheduler._core.index.stats()["pinned_bytes"] == 0


def test_a_preamble_looked_for_in_vain_is_kept_when_it_is_learned(harness, prose) -> None:
    """Its absence was answered in the step before; what that evicts must not be the new one."""
    prompt = prose[:430]
    (fact,) = harness.encode(prompt[:400], [(50, 400)], tag="behind-a-preamble")
    preamble = key_of("preamble", harness.fingerprint, prompt, 0, 50)
    refs = (
        SegmentRef(key=preamble, n_tokens=50, kind="preamble"),
        SegmentRef(key=fact, n_tokens=350),
    )
    op = InjectOp(fingerprint=harness.fingerprint, segments=refs)
    suffix = salt_suffix([preamble, fact])
    first = harness.ask(prompt, op, salt=f"one:{suffix}", n=2)
    assert first.answer["learned_keys"] == [preamble]
    second = harness.ask(prompt, op, salt=f"two:{suffix}", n=2)
    assert second.answer["loaded_keys"] == [preamble, fact]
    assert second.n_cached == 400
