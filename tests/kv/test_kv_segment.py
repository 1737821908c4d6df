"""Layouts and segments: dims, sizes, equality."""

from __future__ import annotations

import pytest
import torch

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.layout import (
    DIMS,
    HEAD_DIM,
    KEY,
    KV,
    KV_HEAD,
    LAYER,
    TOKEN,
    VALUE,
    SegmentLayout,
)
from inferscale_sdk.kv.segment import Segment

LAYOUT = SegmentLayout(n_layers=30, n_kv_heads=3, head_dim=64, dtype=torch.bfloat16)


def test_the_legend() -> None:
    assert DIMS == ("layer", "kv", "token", "kv_head", "head_dim")
    assert (LAYER, KV, TOKEN, KV_HEAD, HEAD_DIM) == (0, 1, 2, 3, 4)
    assert (KEY, VALUE) == (0, 1)


def test_sizes() -> None:
    assert LAYOUT.bytes_per_token == 23_040
    assert LAYOUT.empty(26).shape == LAYOUT.shape(26) == (30, 2, 26, 3, 64)
    assert LAYOUT.empty(26).nbytes == 26 * LAYOUT.bytes_per_token
    assert LAYOUT.empty(1).dtype == torch.bfloat16
    assert SegmentLayout.of(LAYOUT.empty(5)) == LAYOUT


@pytest.mark.parametrize("n_tokens", [0, -3])
def test_a_segment_has_tokens(n_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"n_tokens={n_tokens}"):
        LAYOUT.empty(n_tokens)


@pytest.mark.parametrize("field", ["n_layers", "n_kv_heads", "head_dim"])
def test_counts_are_positive(field: str) -> None:
    counts = {"n_layers": 1, "n_kv_heads": 1, "head_dim": 1, field: 0}
    with pytest.raises(ValueError, match=f"{field}=0"):
        SegmentLayout(**counts, dtype=torch.float32)


@pytest.mark.parametrize(
    "shape",
    [(30, 2, 5, 3), (29, 2, 5, 3, 64), (30, 1, 5, 3, 64), (30, 2, 0, 3, 64), (30, 2, 5, 64, 3)],
)
def test_check_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(CorruptSegment, match="shape"):
        LAYOUT.check(torch.zeros(shape, dtype=torch.bfloat16))


def test_check_refuses_another_dtype() -> None:
    LAYOUT.check(LAYOUT.empty(7))
    with pytest.raises(CorruptSegment, match=r"float16.*bfloat16"):
        LAYOUT.check(LAYOUT.empty(7).half())


def segment(data: torch.Tensor, key: str = "a" * 40, origin: int = 3, digest: str = "d") -> Segment:
    return Segment(key=key, data=data, origin=origin, token_digest=digest)


def test_what_a_segment_knows_of_itself() -> None:
    data = LAYOUT.empty(26)
    assert segment(data).n_tokens == 26
    assert segment(data).nbytes == 26 * 23_040
    assert segment(data).layout == LAYOUT


def test_equality_is_by_content_and_by_bits() -> None:
    data = torch.zeros(1, 2, 2, 1, 4)
    data[0, 0, 0, 0, 0] = float("nan")
    one = segment(data)
    assert one == segment(data.clone())
    assert hash(one) == hash(segment(data.clone()))
    assert one != segment(data, key="b" * 40)
    assert one != segment(data, origin=4)
    assert one != segment(data, digest="e")
    assert one != segment(data.double())
    assert one != segment(data[:, :, :1].contiguous())
    signed = data.clone()
    signed[0, 1, 0, 0, 0] = -0.0
    assert one != segment(signed)
    assert one != "a segment"


def test_segments_that_cannot_be_are_refused() -> None:
    data = torch.zeros(1, 2, 3, 1, 4)
    with pytest.raises(ValueError, match="origin=-1"):
        segment(data, origin=-1)
    with pytest.raises(ValueError, match="contiguous"):
        segment(torch.zeros(1, 2, 3, 4, 5).transpose(3, 4))
    with pytest.raises(CorruptSegment, match="dims"):
        segment(data[0])
    with pytest.raises(CorruptSegment, match="shape"):
        segment(data[:, :1].contiguous())
