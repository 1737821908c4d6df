"""Storage dtypes: shapes, bounds on the error, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_sdk.kv.quantize import Packed, StorageDtype, dequantize, packed_specs, quantize

LOSSY = [StorageDtype.FP8, StorageDtype.INT8, StorageDtype.INT4]


def random_kv(n_tokens: int = 40, head_dim: int = 32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n_tokens)
    data = torch.randn((3, 2, n_tokens, 2, head_dim), generator=generator) * scale
    return data.bfloat16()


def test_as_cache_is_the_tensor_itself() -> None:
    data = random_kv()
    packed = quantize(data, StorageDtype.AS_CACHE)
    assert packed.tensors["kv"] is data
    assert dequantize(packed) is data
    assert packed.nbytes == data.nbytes


@settings(max_examples=60, deadline=None)
@given(
    storage=st.sampled_from(list(StorageDtype)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 3), st.integers(1, 40)),
    scale=st.floats(1e-3, 1e3),
)
def test_what_is_packed_is_what_was_announced(
    storage: StorageDtype, dtype: torch.dtype, sizes: tuple[int, int, int, int], scale: float
) -> None:
    layer, token, head, half = sizes
    data = (torch.randn(layer, 2, token, head, 2 * half) * scale).to(dtype)
    packed = quantize(data, storage)
    specs = packed_specs(storage, dtype, data.shape)
    assert [(s.name, s.dtype, s.shape) for s in specs] == [
        (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in packed.tensors.items()
    ]
    assert packed.nbytes == sum(spec.nbytes for spec in specs)
    again = dequantize(packed)
    assert (again.dtype, again.shape) == (data.dtype, data.shape)
    assert again.is_contiguous()
    assert bool(again.isfinite().all())


def test_int8_is_within_half_a_step_of_every_number() -> None:
    """Against the definition, channel by channel and token by token."""
    data = random_kv().float()
    again = dequantize(quantize(data, StorageDtype.INT8))
    for layer in range(data.shape[0]):
        for head in range(data.shape[3]):
            for channel in range(data.shape[4]):
                keys = data[layer, 0, :, head, channel]
                step = keys.abs().max() / 127 * (1 + 2**-7)
                error = again[layer, 0, :, head, channel] - keys
                # The scale is rounded to 8 bits, so the largest number may be cut by as much.
                assert error.abs().max() <= step / 2 + keys.abs().max() * 2**-8
            for token in range(data.shape[2]):
                values = data[layer, 1, token, head]
                step = values.abs().max() / 127 * (1 + 2**-7)
                error = again[layer, 1, token, head] - values
                assert error.abs().max() <= step / 2 + values.abs().max() * 2**-8


def test_int4_is_within_a_step_of_every_number() -> None:
    data = random_kv(n_tokens=70, head_dim=64).float()
    again = dequantize(quantize(data, StorageDtype.INT4))
    for start in range(0, 70, 32):
        keys = data[:, 0, start : start + 32]
        reach = keys.amax(dim=1, keepdim=True) - keys.amin(dim=1, keepdim=True)
        error = (again[:, 0, start : start + 32] - keys).abs()
        largest = keys.abs().amax(dim=1, keepdim=True)
        assert bool((error <= reach / 30 * 1.02 + largest * 2**-7).all())
    for start in (0, 32):
        values = data[:, 1, :, :, start : start + 32]
        reach = values.amax(dim=3, keepdim=True) - values.amin(dim=3, keepdim=True)
        error = (again[:, 1, :, :, start : start + 32] - values).abs()
        largest = values.abs().amax(dim=3, keepdim=True)
        assert bool((error <= reach / 30 * 1.02 + largest * 2**-7).all())


@pytest.mark.parametrize(("storage", "bound"), [("fp8", 0.03), ("int8", 0.01), ("int4", 0.11)])
def test_relative_error_of_noise(storage: str, bound: float) -> None:
    data = random_kv(n_tokens=256, head_dim=64)
    again = dequantize(quantize(data, StorageDtype(storage)))
    error = (again.float() - data.float()).norm() / data.float().norm()
    assert bound / 10 < error < bound


def test_a_large_channel_of_keys_does_not_cost_the_others_their_precision() -> None:
    data = random_kv()
    data[:, 0, :, :, 5] *= 300
    others = [c for c in range(data.shape[4]) if c != 5]
    again = dequantize(quantize(data, StorageDtype.INT8))
    plain = data[:, 0][..., others].float()
    assert (again[:, 0][..., others].float() - plain).norm() / plain.norm() < 0.01


@pytest.mark.parametrize("storage", LOSSY)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_zeros_and_extremes(storage: StorageDtype, scale: float) -> None:
    data = random_kv(scale=1.0).float().mul(scale)
    again = dequantize(quantize(data, storage))
    assert bool(again.isfinite().all())
    if scale == 0.0:
        assert not again.any()
    else:
        assert (again - data).abs().max() <= data.abs().max() * 0.15


@pytest.mark.parametrize("storage", LOSSY)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(storage: StorageDtype, bad: float) -> None:
    data = random_kv()
    data[0, 0, 0, 0, 0] = bad
    with pytest.raises(ValueError, match="not finite"):
        quantize(data, storage)


def test_odd_heads_and_quantised_caches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"even head_dim, this one is 3; use 'int8'"):
        quantize(torch.zeros(1, 2, 1, 1, 3), StorageDtype.INT4)
    eight = torch.zeros(1, 2, 1, 1, 4, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="float8_e4m3fn cannot be stored as int8"):
        quantize(eight, StorageDtype.INT8)
    assert dequantize(quantize(eight, StorageDtype.AS_CACHE)) is eight


def test_half_the_bytes() -> None:
    """Of a segment of usual size: 30 tokens, heads of 64 channels."""
    data = torch.randn(30, 2, 30, 3, 64).bfloat16()
    share = {s: quantize(data, s).nbytes / data.nbytes for s in LOSSY}
    assert share[StorageDtype.FP8] < 0.502
    assert share[StorageDtype.INT8] < 0.53
    assert share[StorageDtype.INT4] < 0.35


def test_a_packed_segment_knows_its_way_back() -> None:
    packed = quantize(random_kv(), StorageDtype.INT8)
    same = Packed(packed.storage, packed.dtype, packed.shape, dict(packed.tensors))
    assert torch.equal(dequantize(same), dequantize(packed))
