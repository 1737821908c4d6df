"""Injection leaves what prefilling would have left."""

from __future__ import annotations

import pytest
import torch
from connector_harness import BLOCK, Harness

from inferscale_sdk.protocol import CaptureSpan, EncodeOp
from inferscale_sdk.vllm_connector.layers import slots_of
from inferscale_sdk.vllm_connector.metadata import CaptureStep, LoadPlan


def cache_bits(harness: Harness, block_ids: tuple[int, ...], n_tokens: int) -> torch.Tensor:
    """Raw bits of the cache's first ``n_tokens``: integers [layer, kv, kv_head, …]."""
    layers = []
    for module in harness.worker._stack.modules:
        n_blocks, heads, block, _ = module.kv_cache.shape
        head_dim = module.head_size
        cache = module.kv_cache.view(n_blocks, heads, 2, block * head_dim)[list(block_ids)]
        bits = torch.int16 if cache.itemsize == 2 else torch.int32
        keys, values = cache.view(bits).unbind(2)  # each [block, kv_head, packed]
        if module.isa == "vec":  # keys lie channel by channel, values token by token
            keys = keys.unflatten(2, (head_dim, block)).transpose(2, 3)
            values = values.unflatten(2, (block, head_dim))
        else:  # keys in groups of 32 tokens, values by 16 channels of two tokens each
            assert n_tokens % 32 == 0
            keys = keys.unflatten(2, (block // 32, -1))
            values = values.unflatten(2, (head_dim // 16, block // 2, 16, 2))
            values = values.permute(0, 1, 3, 5, 2, 4).flatten(4, 5).flatten(2, 3)
        layers.append(torch.stack([first_tokens(x, n_tokens / block) for x in (keys, values)]))
    return torch.stack(layers).clone()


def first_tokens(pages: torch.Tensor, n_pages: float) -> torch.Tensor:
    """The beginning of ``[block, kv_head, row, packed]``: [kv_head, …]."""
    rows = int(n_pages * pages.shape[2])
    return pages.transpose(0, 1).flatten(1, 2)[:, :rows].flatten(1)


class Spy:
    """Notes the blocks of loads and captures as the worker gets them."""

    def __init__(self, harness: Harness, monkeypatch) -> None:
        self.loads: list[LoadPlan] = []
        self.captures: list[CaptureStep] = []
        begin = harness.worker.begin

        def spy(commands) -> None:
            self.loads += commands.loads
            self.captures += commands.captures
            begin(commands)

        monkeypatch.setattr(harness.worker, "begin", spy)


def test_prefix_at_its_own_origin_leaves_the_same_bits(harness, prose, monkeypatch) -> None:
    spy = Spy(harness, monkeypatch)
    n_tokens = 992  # 31 groups of 32: the last block is partly filled
    bounds = [(0, 40), (40, 300), (300, 301), (301, n_tokens)]
    keys = harness.encode(prose[: n_tokens + 5], bounds, tag="bits")
    prefilled = cache_bits(harness, spy.captures[-1].block_ids, n_tokens)

    out = harness.inject(
        prose[: n_tokens + 5], [(k, b - a) for k, (a, b) in zip(keys, bounds, strict=True)], n=1
    )

    assert out.n_cached == n_tokens
    assert [(plan.first, plan.last) for plan in spy.loads] == [(0, n_tokens)]
    injected = cache_bits(harness, spy.loads[0].block_ids, n_tokens)
    assert prefilled.any()
    assert torch.equal(prefilled, injected)


def test_same_logprobs_as_a_local_prefix_hit(harness, prose) -> None:
    n_tokens = 7 * BLOCK
    prompt = prose[: n_tokens + 60]
    bounds = [(0, 100), (100, n_tokens)]
    keys = harness.encode(prompt, bounds, tag="logprobs")
    harness.ask(prompt, salt="warm")
    local = harness.ask(prompt, salt="warm", n=12, logprobs=5)
    injected = harness.inject(
        prompt, [(k, b - a) for k, (a, b) in zip(keys, bounds, strict=True)], n=12, logprobs=5
    )
    assert local.n_cached == injected.n_cached == n_tokens
    assert injected.answer["loaded_tokens"] == n_tokens
    assert injected.token_ids == local.token_ids
    assert injected.logprobs == local.logprobs


@pytest.mark.field_fault(11)
def test_layer0_keys_at_other_positions(harness, prose) -> None:
    """Layer 0 sees no context, so moved keys must be the prefilled ones but for rounding.

    In float32 the units are so small that the projection's own sums show, which run in another
    order at another place of the batch.
    """
    start, stop = 200, 232
    fact = prose[start:stop]
    (key,) = harness.encode(prose[:stop], [(start, stop)], tag="moved")
    for place in (7, 64, 333, 1000, 2900):
        filler = (prose * 3)[:place]
        there = filler + fact + prose[:4]
        (prefix, fresh) = harness.encode(
            there, [(0, place), (place, place + len(fact))], tag=f"at{place}"
        )
        with harness.spy_on_layer(0) as written:
            out = harness.inject(there, [(prefix, place), (key, len(fact))])
        assert out.answer["loaded_tokens"] == place + len(fact)
        moved = written[0][0][place:]  # [token, kv_head, head_dim]
        expected = harness.resident(fresh).data[0, 0]
        assert not torch.equal(harness.resident(key).data[0, 0], expected)
        # A pair of channels is turned as one vector, so the unit is that of the pair's length.
        half = expected.shape[-1] // 2
        pair = expected.float().view(*expected.shape[:-1], 2, half).norm(dim=-2)
        mantissa, limit, same = {torch.bfloat16: (7, 1, 0.6), torch.float32: (23, 4, 0)}[
            expected.dtype
        ]
        unit = 2.0 ** (pair.log2().floor() - mantissa)
        error = (moved.float() - expected.float()).abs().view(*pair.shape[:-1], 2, half)
        worst = float((error / unit.unsqueeze(-2)).max())
        assert worst <= limit
        assert float((moved == expected).float().mean()) >= same


@pytest.mark.parametrize("layer", [0, 29])
def test_moved_values_are_not_touched(harness, prose, layer) -> None:
    start, stop = 150, 190
    (key,) = harness.encode(prose[:stop], [(start, stop)], tag=f"values{layer}")
    fact = prose[start:stop]
    with harness.spy_on_layer(layer) as written:
        harness.inject(fact + prose[:9], [(key, len(fact))])
    ((_, values),) = written
    assert torch.equal(values, harness.resident(key).data[layer, 1])


def test_captured_in_small_chunks_equals_captured_alone(harness, prose) -> None:
    """Long prompts are split over steps and share them with others; captures must not notice."""
    long = (prose * 3)[:3000]
    bounds = [(990, 1060), (2000, 2100), (2100, 2101)]
    keys = harness.encode(long, bounds, tag="chunks")
    for key, (a, b) in zip(keys, bounds, strict=True):
        segment = harness.resident(key)
        assert segment.origin == a
        assert segment.n_tokens == b - a
        assert bool(segment.data.float().abs().sum(dim=(0, 1, 3, 4)).gt(0).all())
    # Layer 0 keys depend on token and position alone: a neighbour's rows would show at once.
    (alone,) = harness.encode(long[:1060], [(990, 1060)], tag="alone")
    assert torch.equal(harness.resident(alone).data[0], harness.resident(keys[0]).data[0])


def test_slots_cross_blocks() -> None:
    slots = slots_of((7, 2), 126, 131, BLOCK)
    assert slots.tolist() == [7 * 128 + 126, 7 * 128 + 127, 2 * 128, 2 * 128 + 1, 2 * 128 + 2]


def test_the_mean_of_two_readings_is_kept(harness, prose) -> None:
    """Values to the bit; keys of layer 0, which see no context, as either reading has them."""
    fact, n = prose[200:240], 40
    near, far = prose[:60] + fact, prose[300:900] + fact
    (first,) = harness.encode(near, [(60, 60 + n)], tag="first")
    (second,) = harness.encode(far, [(600, 600 + n)], tag="second")
    mean = "5" * 40
    span = CaptureSpan(key=mean, start=600, stop=600 + n, beside=first)
    op = EncodeOp(fingerprint=harness.fingerprint, captures=(span,))
    answer = harness.ask(far, op, n=2).answer
    assert answer["stored"] == [mean] and answer["failed"] == {}
    segment, one, other = (harness.resident(key) for key in (mean, first, second))
    assert segment.origin == 600
    half = ((one.data[:, 1].float() + other.data[:, 1].float()) / 2).to(one.data.dtype)
    torch.testing.assert_close(segment.data[:, 1].float(), half.float(), atol=0.02, rtol=0.02)
    keys = [s.data[0, 0].float() for s in (segment, other)]
    torch.testing.assert_close(*keys, atol=0.05, rtol=0.02)
    out = harness.inject(fact + prose[:9], [(mean, n)])
    assert out.answer["loaded_tokens"] == n

    for beside, reason in (
        ("6" * 40, "missing"),
        (harness.encode(near, [(0, n)], tag="other tokens")[0], "token_mismatch"),
    ):
        span = CaptureSpan(key="7" * 40, start=600, stop=600 + n, beside=beside)
        op = EncodeOp(fingerprint=harness.fingerprint, captures=(span,))
        assert harness.ask(far, op, n=2).answer["failed"] == {"7" * 40: reason}
        assert "7" * 40 not in harness.worker._resident
    assert harness.leftovers() == []
