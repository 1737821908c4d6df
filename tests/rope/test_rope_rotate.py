"""Moving keys by a delta against rotating them afresh by definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_sdk.rope.rotate import delta_table, rotate, rotate_into
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.testing.rope_oracle import rotate_at

HEAD_DIM = 16
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
}
SHAPES = [(interleaved, rotary_dim) for interleaved in (False, True) for rotary_dim in (16, 8)]


def pair_norms(keys: torch.Tensor, interleaved: bool, rotary_dim: int) -> torch.Tensor:
    """Length of the pair that each channel belongs to; of the channel itself past rotary_dim."""
    norms = keys.double().abs().clone()
    half = rotary_dim // 2
    for pair in range(half):
        both = [2 * pair, 2 * pair + 1] if interleaved else [pair, pair + half]
        norms[..., both] = keys.double()[..., both].norm(dim=-1, keepdim=True)
    return norms


@pytest.mark.parametrize("variant", PARAMETERS)
@pytest.mark.parametrize(("interleaved", "rotary_dim"), SHAPES)
@pytest.mark.parametrize(("origin", "position"), [(0, 1000), (1000, 3), (70000, 131000), (5, 5)])
def test_moving_equals_rotating_afresh(
    variant: str, interleaved: bool, rotary_dim: int, origin: int, position: int
) -> None:
    """R(p) = R(p - o)·R(o), in float32 to a few roundings, in bfloat16 to three.

    In bfloat16 a fresh key is rounded once (2^-8 of a channel at most), a moved one twice: when it
    was stored and when it was moved. The first rounding turns with its pair, so the bound holds
    relative to the pair's length: 3 · 2^-8. A channel much smaller than its partner may therefore
    be off by more than one of its own units in the last place.
    """
    n_tokens = 6
    rng = np.random.default_rng(origin + rotary_dim)
    raw = rng.standard_normal((n_tokens, 2, HEAD_DIM))

    def at(start: int) -> torch.Tensor:
        where = range(start, start + n_tokens)
        return torch.from_numpy(
            rotate_at(
                raw, where, PARAMETERS[variant], rotary_dim=rotary_dim, interleaved=interleaved
            )
        )

    spec = RopeSpec.from_parameters(
        HEAD_DIM, PARAMETERS[variant], rotary_dim=rotary_dim, interleaved=interleaved
    )
    cos, sin = delta_table(spec, [position - origin] * n_tokens)
    stored, fresh = at(origin), at(position)
    norms = pair_norms(fresh, interleaved, rotary_dim)
    for dtype, bound in ((torch.float32, 5 * 2**-24), (torch.bfloat16, 3.01 * 2**-8)):
        moved = rotate(stored.to(dtype), cos, sin, interleaved=interleaved, rotary_dim=rotary_dim)
        assert moved.dtype == dtype
        error = (moved.double() - fresh.to(dtype).double()).abs()
        assert bool((error <= bound * norms).all()), (error / norms).max()


@pytest.mark.parametrize(("interleaved", "rotary_dim"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_result_is_rounded_once(interleaved: bool, rotary_dim: int, dtype: torch.dtype) -> None:
    """Against the stored bits, moving costs half a unit in the last place and float32's noise."""
    parameters = PARAMETERS["default"]
    stored = torch.randn(40, 2, HEAD_DIM).to(dtype)
    spec = RopeSpec.from_parameters(
        HEAD_DIM, parameters, rotary_dim=rotary_dim, interleaved=interleaved
    )
    deltas = torch.arange(-20, 20)
    cos, sin = delta_table(spec, deltas)
    moved = rotate(stored, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim)
    exact = torch.from_numpy(
        rotate_at(
            stored.double().numpy(),
            deltas.tolist(),
            parameters,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
        )
    )
    half_unit = torch.finfo(dtype).eps / 2 * 2 ** exact.abs().log2().floor()
    noise = 5 * 2**-24 * pair_norms(exact, interleaved, rotary_dim)
    subnormal = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert bool(((moved.double() - exact).abs() <= half_unit + noise + subnormal).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("interleaved", "rotary_dim"), SHAPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_tokens_that_stay_and_channels_that_do_not_rotate_keep_their_bits(
    dtype: torch.dtype, interleaved: bool, rotary_dim: int, in_place: bool
) -> None:
    keys = torch.randn(3, 5, 2, HEAD_DIM).to(dtype)
    keys[:, 1, :, ::3] = -0.0
    keys[:, 1, :, 1] = -1.0
    keys[:, 1, 0, 2] = float("inf")
    keys[:, 3, 1, 4] = float("nan")
    before = keys.clone()
    spec = RopeSpec.default(HEAD_DIM, 1e4, rotary_dim=rotary_dim, interleaved=interleaved)
    cos, sin = delta_table(spec, [7, 0, -7, 0, 1])
    out = keys if in_place else torch.empty_like(keys)
    same = rotate_into(out, keys, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim)
    assert same is out
    for stay in (1, 3):
        assert torch.equal(bits(out[:, stay]), bits(before[:, stay]))
    assert torch.equal(bits(out[..., rotary_dim:]), bits(before[..., rotary_dim:]))
    assert not torch.equal(out[:, 0, :, :rotary_dim], before[:, 0, :, :rotary_dim])
    if not in_place:
        assert torch.equal(bits(keys), bits(before))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("interleaved", [False, True])
def test_any_strides_leading_dims_and_output_dtype(interleaved: bool) -> None:
    spec = RopeSpec.default(HEAD_DIM, 1e4, interleaved=interleaved)
    cos, sin = delta_table(spec, [3, -4, 5])
    how = {"interleaved": interleaved, "rotary_dim": HEAD_DIM}
    data = torch.randn(4, 2, 3, 2, HEAD_DIM).bfloat16()  # [layer, kv, token, kv_head, head_dim]
    keys = data[:, 0]
    expected = torch.stack([rotate(layer, cos, sin, **how) for layer in keys])
    assert torch.equal(rotate(keys, cos, sin, **how), expected)
    assert torch.equal(rotate(keys[None], cos, sin, **how)[0], expected)
    strided = torch.zeros(4, 2, 3, HEAD_DIM).bfloat16().transpose(1, 2)
    assert torch.equal(rotate_into(strided, keys, cos, sin, **how), expected)
    wide = rotate_into(torch.zeros(keys.shape), keys, cos, sin, **how)
    assert torch.equal(wide.bfloat16(), expected)
    values = data[:, 1].clone()
    rotate_into(keys, keys, cos, sin, **how)
    assert torch.equal(data[:, 0], expected)
    assert torch.equal(data[:, 1], values)


def test_moving_there_and_back_gives_the_key_again() -> None:
    spec = RopeSpec.llama3(
        HEAD_DIM,
        5e5,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=8192,
    )
    keys = torch.randn(4, 2, HEAD_DIM)
    how = {"interleaved": False, "rotary_dim": HEAD_DIM}
    there = rotate(keys, *delta_table(spec, [12345] * 4), **how)
    back = rotate(there, *delta_table(spec, [-12345] * 4), **how)
    torch.testing.assert_close(back, keys, rtol=0, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**21), 2**21), min_size=1, max_size=40))
def test_the_table_is_the_float32_of_the_exact_angle(deltas: list[int]) -> None:
    spec = RopeSpec.default(HEAD_DIM, 1e4)
    cos, sin = delta_table(spec, deltas)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.shape == sin.shape == (len(deltas), HEAD_DIM // 2)
    for row, delta in enumerate(deltas):
        for pair, frequency in enumerate(spec.frequencies):
            assert float(cos[row, pair]) == pytest.approx(math.cos(delta * frequency), abs=6e-8)
            assert float(sin[row, pair]) == pytest.approx(math.sin(delta * frequency), abs=6e-8)
    again = delta_table(spec, torch.tensor(deltas))
    assert torch.equal(cos, again[0])
    assert torch.equal(sin, again[1])


def test_a_segment_of_no_tokens_is_fine() -> None:
    spec = RopeSpec.default(HEAD_DIM, 1e4)
    cos, sin = delta_table(spec, [])
    empty = torch.empty(2, 0, 2, HEAD_DIM)
    assert rotate(empty, cos, sin, interleaved=False, rotary_dim=HEAD_DIM).shape == empty.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(3, HEAD_DIM), "out": torch.zeros(3, HEAD_DIM)}, "kv_head, head_dim"),
        ({"out": torch.zeros(3, 1, HEAD_DIM)}, "kv_head, head_dim"),
        ({"cos": torch.zeros(2, HEAD_DIM // 2)}, "token, rotary_dim/2"),
        ({"sin": torch.zeros(3, HEAD_DIM)}, "token, rotary_dim/2"),
        ({"rotary_dim": 7}, "rotary_dim=7"),
        ({"rotary_dim": HEAD_DIM + 2}, f"at most head_dim={HEAD_DIM}"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "out": torch.zeros(3, 2, HEAD_DIM),
        "keys": torch.zeros(3, 2, HEAD_DIM),
        "cos": torch.zeros(3, HEAD_DIM // 2),
        "sin": torch.zeros(3, HEAD_DIM // 2),
        "interleaved": False,
        "rotary_dim": HEAD_DIM,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        rotate_into(**arguments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("interleaved", "rotary_dim"), SHAPES)
def test_a_gpu_gives_the_same(interleaved: bool, rotary_dim: int) -> None:
    keys = torch.randn(4, 6, 2, HEAD_DIM).bfloat16()
    spec = RopeSpec.default(HEAD_DIM, 1e4, rotary_dim=rotary_dim, interleaved=interleaved)
    deltas = [5, 0, -3, 1000, 0, 70000]
    how = {"interleaved": interleaved, "rotary_dim": rotary_dim}
    expected = rotate(keys, *delta_table(spec, deltas), **how)
    moved = rotate(keys.cuda(), *delta_table(spec, deltas, device="cuda"), **how).cpu()
    torch.testing.assert_close(moved, expected, rtol=2**-8, atol=1e-6)
    assert torch.equal(moved[:, [1, 4]], keys[:, [1, 4]])
