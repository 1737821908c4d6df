"""Faults that users of such systems met, by the numbers of ``docs/reliability.md``.

The other numbers mark tests where they belong: ``pytest -m field_fault``.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from connector_harness import Harness, key_of
from vllm import SamplingParams

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import FIELD, InjectOp, SegmentRef, salt_suffix

N_MEMORY = 400


@pytest.fixture
def stored(harness: Harness, prose: list[int], request) -> tuple[list[int], list[tuple[str, int]]]:
    """A prompt whose first 400 tokens are four stored segments.

    It ends where the next six tokens are far ahead of all others, so that the last bits, which
    differ between batches of other sizes, choose none of them.
    """
    bounds = [(i * 100, i * 100 + 100) for i in range(4)]
    keys = harness.encode(prose[:N_MEMORY], bounds, tag=request.node.name[-24:])
    return prose[: N_MEMORY + 37], [(key, 100) for key in keys]


@pytest.mark.field_fault(1)
@pytest.mark.parametrize("n_memory", [1, 100, 128, 200, 256])
def test_a_local_hit_beyond_the_segments_claims_nothing(harness, stored, n_memory) -> None:
    """Never a negative count: the engine's own cache may reach further than what is injected."""
    prompt, _ = stored
    (key,) = harness.encode(prompt[:n_memory], [(0, n_memory)], tag="short")
    refs = (SegmentRef(key=key, n_tokens=n_memory),)
    op = InjectOp(fingerprint=harness.fingerprint, segments=refs)
    salt = f"{secrets.token_hex(8)}:{salt_suffix([key])}"
    first = harness.ask(prompt, op, salt=salt, n=4)
    again = harness.ask(prompt, op, salt=salt, n=4)
    assert first.answer["claimed_tokens"] == n_memory
    assert again.answer["local_tokens"] == 384
    assert again.answer["claimed_tokens"] == 0
    assert again.token_ids == first.token_ids


@pytest.mark.field_fault(4)
@pytest.mark.parametrize("n_steps", range(6))
def test_aborts_at_every_step_leak_nothing(harness, stored, n_steps) -> None:
    """Three at once: two are given up, the third is answered as if alone."""
    prompt, segments = stored
    alone = harness.inject(prompt, segments, n=6)
    engine = harness.llm.llm_engine
    harness.drop_resident()  # so that the first steps wait for the disk
    engine.reset_prefix_cache()
    before = harness.free_blocks()
    ids = []
    for i in range(3):
        op, salt = harness.inject_op(segments)
        extra = {"kv_transfer_params": {FIELD: op.model_dump(mode="json")}}
        params = SamplingParams(max_tokens=6, temperature=0, extra_args=extra)
        name = f"abort-{n_steps}-{i}-{secrets.token_hex(4)}"
        inner = engine.add_request(name, {"prompt_token_ids": prompt, "cache_salt": salt}, params)
        ids.append(inner or name)
    done: list[Any] = []
    for _ in range(n_steps):
        done += [out for out in engine.step() if out.finished]
    engine.abort_request(ids[:2], internal=True)
    while engine.has_unfinished_requests():
        done += [out for out in engine.step() if out.finished]
    assert list(done[-1].outputs[0].token_ids) == alone.token_ids
    assert harness.free_blocks() == before
    assert harness.leftovers() == []


@pytest.mark.field_fault(5)
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 127, 128, 129])
def test_prompts_as_short_as_their_segments(harness, prose, n_tokens) -> None:
    """One token is always left to compute; shorter prompts than a block are no special case."""
    prompt = prose[:n_tokens]
    (key,) = harness.encode(prompt, [(0, n_tokens)], tag="whole")
    plain = harness.ask(prompt, n=3)
    whole = harness.inject(prompt, [(key, n_tokens)], n=3)
    assert whole.answer["claimed_tokens"] == n_tokens - 1
    assert whole.token_ids == plain.token_ids


@pytest.mark.field_fault(6)
def test_one_step_with_injected_and_plain_requests_pollutes_nothing(harness, stored) -> None:
    """The same tokens in one step, one with KV that is visibly another's: each its own answer."""
    prompt, segments = stored
    plain = harness.ask(prompt, n=6)
    key = key_of("polluted", harness.fingerprint, prompt, 0, 100)
    whole = harness.resident(segments[0][0])
    shelf = harness.worker._resident
    other = Segment(key, whole.data.neg() * 2, 0, whole.token_digest)
    shelf[key] = other
    index = harness.scheduler._core.index
    index._resident[key] = index._resident[segments[0][0]]
    index._ledger.admit(key, other.nbytes)
    op, salt = harness.inject_op([(key, 100)])
    requests = [(prompt, op, salt), (prompt, None, "plain-1"), (prompt, None, None)]
    outs = harness.ask_many(requests * 2, n=6)
    assert outs[0].answer["claimed_tokens"] == 100
    assert outs[0].token_ids != plain.token_ids  # the other KV is visible, where it belongs
    for out in (*outs[1:3], *outs[4:]):
        assert out.token_ids == plain.token_ids
    assert harness.ask(prompt, None, salt="plain-1", n=6).token_ids == plain.token_ids
    assert harness.ask(prompt, None, salt=None, n=6).token_ids == plain.token_ids
    index.remove([key])
    del shelf[key]


@pytest.mark.field_fault(7)
@pytest.mark.parametrize("n_first", [130, 260, 390])
def test_injection_on_top_of_a_native_hit(harness, stored, n_first) -> None:
    """The engine's cache has the first blocks, the segments the rest, also within one segment."""
    prompt, segments = stored
    alone = harness.inject(prompt, segments, n=6, logprobs=3)
    op, salt = harness.inject_op(segments)
    harness.ask(prompt[:n_first], op.model_copy(update=short(segments, n_first)), salt=salt, n=2)
    # That was refused for its salt, so the blocks are prefilled ones, under the very salt.
    both = harness.ask(prompt, op, salt=salt, n=6, logprobs=3)
    assert both.answer["local_tokens"] == n_first // 128 * 128
    assert both.answer["local_tokens"] + both.answer["claimed_tokens"] == N_MEMORY
    assert both.token_ids == alone.token_ids


def short(segments: list[tuple[str, int]], n_tokens: int) -> dict[str, Any]:
    n_whole = n_tokens // 100
    refs = tuple(SegmentRef(key=key, n_tokens=n) for key, n in segments[:n_whole])
    return {"segments": refs}
