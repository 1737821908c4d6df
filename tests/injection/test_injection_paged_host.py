"""The kernel that writes all layers on a CPU, into caches of the form that vLLM has there."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_case import CPU, N_POSITIONS, case, check

from inferscale_sdk.injection.paged import find_writer
from inferscale_sdk.injection.pieces import Piece
from inferscale_sdk.kv.rows import Rows

pytest.importorskip("numba", reason="not installed")

from inferscale_sdk.injection.paged_host import HostPageWriter

FORM: dict[str, Any] = {"form": "by channel", "page": 16}
DTYPES = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary_dim", [32, 16])
def test_what_is_written_is_what_torch_would_write(dtype, rotary_dim):
    check(case(dtype=dtype, head_dim=32, rotary_dim=rotary_dim, **FORM), HostPageWriter)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 40, 200])
def test_slots_side_by_side_are_written_eight_at_a_time(dtype, n):
    made = case(dtype=dtype, lengths=(n,), origins=(50,), layers="a-", **FORM)
    made.slots = torch.arange(5, 5 + n)

    check(made, HostPageWriter)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape_is_written_as_torch_would_write_it(data):
    head_dim = data.draw(st.integers(2, 7).map(lambda n: 8 * n))
    n = data.draw(st.integers(1, 4))
    made = case(
        dtype=data.draw(st.sampled_from(DTYPES)),
        heads=data.draw(st.integers(1, 5)),
        head_dim=head_dim,
        rotary_dim=16 * data.draw(st.integers(1, head_dim // 16)),
        lengths=tuple(data.draw(st.integers(1, 60)) for _ in range(n)),
        origins=tuple(data.draw(st.integers(0, N_POSITIONS - 60)) for _ in range(n)),
        first=data.draw(st.integers(0, 50)),
        page=data.draw(st.sampled_from([1, 3, 16, 32])),
        form="by channel",
        layers=data.draw(st.sampled_from(["a", "-", "ab", "-a", "aab-"])),
        seed=data.draw(st.integers(0, 1000)),
    )
    if data.draw(st.booleans()):
        made.slots = made.slots.sort().values

    check(made, HostPageWriter)


def test_more_tokens_than_are_turned_at_once():
    made = case(heads=8, head_dim=128, lengths=(90,), origins=(3,), layers="ab", **FORM)
    made.slots = made.slots.sort().values

    check(made, HostPageWriter)


def test_parts_of_segments_and_rows_of_an_arena_are_read_where_they_lie():
    made = case(lengths=(6, 5), origins=(0, 80), **FORM)
    made.pieces = (Piece("0", 2, 6, 2), Piece("1", 1, 4, 6))
    made.slots = made.slots[:7]
    arena = torch.zeros(40, 4, 2, 2, 16, dtype=torch.bfloat16)
    lent: dict[str, Any] = dict(made.segments)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:6]
    arena[slots] = made.segments["0"].data.permute(2, 0, 1, 3, 4)
    lent["0"] = Rows(arena, slots.numpy(), 0)

    check(made, HostPageWriter, lent)


def test_other_tables_turn_otherwise():
    made, other = case(**FORM), case(layers="bbb-", **FORM)
    check(other, lambda cache, tables: HostPageWriter(cache, made.tables).with_tables(tables))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dtype": torch.float16}, "float16"),
        ({"form": "slots first"}, "strides"),
        ({"form": "two halves"}, "strides"),
        ({"head_dim": 12}, "12 channels"),
        ({"rotary_dim": 8}, "4 pairs of channels"),
        ({"interleaved": True}, "interleaved"),
    ],
)
def test_what_the_kernel_does_not_know_is_left_to_others(changes, why, caplog):
    made = case(**(FORM | changes))
    with caplog.at_level("INFO"):
        assert find_writer(CPU)(made.cache, made.tables) is None
    assert why in caplog.text
    with pytest.raises(ValueError, match=why):
        HostPageWriter(made.cache, made.tables)


def test_without_numba_there_is_no_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert find_writer(CPU) is None
