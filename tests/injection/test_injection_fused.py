"""The compiled rotation: the bits of torch's, and torch's own where there is none."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch

from inferscale_sdk.injection import fused, pieces
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.rotate import rotate_into
from inferscale_sdk.rope.spec import layer_specs
from inferscale_sdk.rope.table import RotaryTable

LAYOUT = SegmentLayout(n_layers=3, n_kv_heads=2, head_dim=64, dtype=torch.bfloat16)


@pytest.fixture
def fresh():
    """Nobody has asked for the kernel yet, and nobody keeps what this test got."""
    fused.turning_kernel.cache_clear()
    yield
    fused.turning_kernel.cache_clear()


@pytest.fixture
def kernel(fresh):
    pytest.importorskip("numba")
    found = fused.turning_kernel()
    assert found is not None
    return found


@pytest.mark.parametrize("rotary_dim", [64, 32, 16])
def test_the_bits_are_torchs(kernel, rotary_dim):
    draw = torch.Generator().manual_seed(rotary_dim)
    data = torch.randn((3, 2, 300, 2, 64), generator=draw).to(torch.bfloat16) * 30
    angles = torch.randn((300, rotary_dim // 2), generator=draw) * 100
    angles[::5] = 0.0
    data[:, 0, 0] = -0.0
    wanted = data.clone()
    rotate_into(
        wanted[:, 0], wanted[:, 0], angles.cos(), angles.sin(),
        interleaved=False, rotary_dim=rotary_dim,
    )  # fmt: skip

    kernel(data, angles.cos(), angles.sin())

    assert torch.equal(data.view(torch.int16), wanted.view(torch.int16))


def test_only_what_it_can_turn_is_given_to_it():
    data = LAYOUT.empty(4)

    assert fused.fits(data, interleaved=False)
    assert not fused.fits(data, interleaved=True)
    assert not fused.fits(data.float(), interleaved=False)
    assert not fused.fits(data[:, :, ::2], interleaved=False)


def test_without_numba_torch_is_used(fresh, monkeypatch):
    ours = ("inferscale_sdk.injection.host_kernel", "inferscale_sdk.injection.simd")
    theirs = ("numba", "llvmlite")
    for name in [m for m in sys.modules if m in ours or m.split(".")[0] in theirs]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] in theirs:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)

    assert fused.turning_kernel() is None


def test_a_kernel_that_rounds_otherwise_is_not_used(fresh, monkeypatch):
    monkeypatch.setattr(fused, "_compiled", lambda: lambda data, cos, sin: data.mul_(2))

    assert fused.turning_kernel() is None


def test_gathering_gives_the_same_bits_either_way(kernel, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    spec = layer_specs(
        {"model_type": "llama", "head_dim": 64, "hidden_size": 128, "num_attention_heads": 2,
         "rope_theta": 1e4, "max_position_embeddings": 512}, 1
    )[0]  # fmt: skip
    table = RotaryTable(spec, 512, rounding=torch.bfloat16)
    made = {
        name: Segment(
            name, torch.randn(LAYOUT.shape(n), generator=draw).to(torch.bfloat16), origin, "d"
        )
        for name, n, origin in (("a", 9, 0), ("b", 5, 200), ("c", 7, 40))
    }
    parts = [
        pieces.Piece("a", 0, 9, 0), pieces.Piece("b", 0, 5, 9), pieces.Piece("c", 2, 7, 14)
    ]  # fmt: skip
    tables = (table, None, table)

    def gathered():
        return pieces.gather(parts, made, LAYOUT, tables, device=torch.device("cpu"))

    compiled = gathered()
    monkeypatch.setattr(pieces, "turning_kernel", lambda: None)

    assert torch.equal(compiled.view(torch.int16), gathered().view(torch.int16))
    assert torch.get_num_threads() >= 1


def test_threads_are_as_they_were_after_a_failure():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError):
            pieces.gather(
                [pieces.Piece("gone", 0, 1, 0)], {}, LAYOUT, (None,) * 3, device=torch.device("cpu")
            )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
