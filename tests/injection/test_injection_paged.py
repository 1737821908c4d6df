"""The kernel that writes all layers at once, under triton's interpreter."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

import paged_case
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paged_case import CPU, N_POSITIONS, Case, bits, case

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.injection.paged import PagedCache, PageWriter, find_writer
from inferscale_sdk.injection.paged_triton import TritonPageWriter
from inferscale_sdk.injection.pieces import Piece, gather
from inferscale_sdk.kv.rows import Rows
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.rope.table import RotaryTable
from inferscale_sdk.testing.interpreted_kernel import interpreted_kernel

pytest.importorskip("triton", reason="has no wheels for this system")

KERNEL = "inferscale_sdk.injection.triton_kernel"


@pytest.fixture(scope="module")
def kernel():
    from triton.runtime import interpreter

    made = interpreted_kernel()
    assert isinstance(made, interpreter.InterpretedFunction)
    return made


def once(kernel_: Any) -> bool:
    """Whether the interpreter's fused multiply-add rounds once, as a device's does."""
    from triton.runtime import interpreter

    return hasattr(interpreter._interpreter, "fma_fp32")


def check(made: Case, kernel: Any, lent: dict[str, Any] | None = None) -> None:
    writer = partial(TritonPageWriter, kernel=kernel)
    paged_case.check(made, writer, lent, exact=once(kernel))


@pytest.mark.parametrize("form", ["heads first", "slots first", "two halves", "two in a page"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_written_is_what_torch_would_write(kernel, form, dtype, interleaved):
    check(case(form=form, dtype=dtype, interleaved=interleaved), kernel)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_shape_is_written_as_torch_would_write_it(kernel, data):
    head_dim = data.draw(st.integers(1, 12).map(lambda n: 2 * n))
    n = data.draw(st.integers(1, 4))
    check(
        case(
            dtype=data.draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32])),
            heads=data.draw(st.integers(1, 5)),
            head_dim=head_dim,
            rotary_dim=2 * data.draw(st.integers(1, head_dim // 2)),
            interleaved=data.draw(st.booleans()),
            lengths=tuple(data.draw(st.integers(1, 9)) for _ in range(n)),
            origins=tuple(data.draw(st.integers(0, N_POSITIONS - 9)) for _ in range(n)),
            first=data.draw(st.integers(0, 100)),
            page=data.draw(st.sampled_from([1, 3, 4, 16])),
            form=data.draw(st.sampled_from(["heads first", "slots first", "two in a page"])),
            layers=data.draw(st.sampled_from(["a", "-", "ab", "-a", "aab-"])),
            seed=data.draw(st.integers(0, 1000)),
        ),
        kernel,
    )


def test_parts_of_segments_and_tokens_that_stay(kernel):
    made = case(lengths=(6, 5), origins=(0, 80))
    made.pieces = (Piece("0", 2, 6, 2), Piece("1", 1, 4, 6))
    made.slots = made.slots[:7]
    check(made, kernel)


def test_rows_of_an_arena_are_read_where_they_lie(kernel):
    made = case()
    arena = torch.zeros(40, 4, 2, 2, 16, dtype=torch.bfloat16)
    free = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    lent: dict[str, Any] = dict(made.segments)
    for i, key in enumerate(("0", "2")):
        segment = made.segments[key]
        slots = free[i * 8 : i * 8 + segment.n_tokens]
        arena[slots] = segment.data.permute(2, 0, 1, 3, 4)
        lent[key] = Rows(arena, slots.numpy(), segment.origin)

    check(made, kernel, lent)
    assert torch.equal(gather(made.pieces, lent, made.layout, made.tables, device=CPU),
                       made.expected())  # fmt: skip


@pytest.mark.parametrize("away", [{"0"}, {"1", "2"}, {"0", "1", "2"}])
def test_what_lies_elsewhere_is_brought_here_in_one_copy(kernel, monkeypatch, away):
    made = case()
    monkeypatch.setattr(
        PageWriter, "_is_here", lambda self, lent: lent not in [made.segments[k] for k in away]
    )

    check(made, kernel)


@pytest.mark.parametrize(("layers", "launches"), [("aba-", 1), ("--", 1), ("-c", 1), ("acb", 2)])
def test_one_launch_for_all_layers_of_which_the_same_channels_turn(kernel, layers, launches):
    made = case(layers=layers)
    half = RotaryTable(
        RopeSpec.default(16, 1e3, rotary_dim=8), N_POSITIONS, rounding=torch.bfloat16
    )
    made.tables = tuple(half if x == "c" else t for x, t in zip(layers, made.tables, strict=True))
    grids = []

    class Counting:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    check(made, Counting())

    assert len(grids) == launches
    assert sum(grid[1] for grid in grids) == len(layers)


def test_addresses_that_are_not_aligned_are_read_in_smaller_steps(kernel):
    made = case(head_dim=6, heads=1)
    seen = []

    class Watching:
        def __getitem__(self, grid):
            def launch(*args, **fixed):
                seen.append(fixed["ALIGN"])
                kernel[grid](*args, **fixed)

            return launch

    check(made, Watching())
    check(case(), Watching())

    assert seen == [2, 16]


def test_what_does_not_fit_is_refused(kernel):
    made = case()
    writer = TritonPageWriter(made.cache, made.tables, kernel)
    piece = (Piece("0", 0, 3, 0),)

    def write(pieces=piece, segments=made.segments, slots=made.slots[:3]):
        writer.write(pieces, segments, slots)

    with pytest.raises(ValueError, match="without pieces"):
        write(pieces=())
    with pytest.raises(KeyError):
        write(segments={})
    with pytest.raises(CorruptSegment, match="does not fit"):
        write(segments={"0": Segment("0", torch.zeros(4, 2, 3, 2, 8).bfloat16(), 0, "d")})
    with pytest.raises(CorruptSegment, match="dtype"):
        write(segments={"0": Segment("0", torch.zeros(4, 2, 3, 2, 16), 0, "d")})
    with pytest.raises(CorruptSegment, match="position 301"):
        write(segments={"0": Segment("0", made.segments["0"].data, 299, "d")})
    with pytest.raises(ValueError, match="of a segment of 3 tokens"):
        write(pieces=(Piece("0", 0, 4, 0),))
    for slots in (made.slots[:2], torch.tensor([0, 1, -1]), torch.tensor([0, 1, 10**6])):
        with pytest.raises(ValueError, match="slots for 3 tokens"):
            write(slots=slots)
    assert not any((view.contiguous().view(torch.uint8) != 0x55).any() for view in made.cache.keys)


def test_a_cache_of_other_numbers_or_forms_is_refused(kernel):
    made = case()
    with pytest.raises(ValueError, match="caches of layers differ"):
        PagedCache(made.cache.keys, (*made.cache.values[1:], made.cache.values[0][:2]))
    turned = PagedCache(
        (made.cache.keys[0].transpose(2, 3),), (made.cache.values[0].transpose(2, 3),)
    )
    with pytest.raises(ValueError, match="contiguous channels"):
        TritonPageWriter(turned, (None,), kernel)
    with pytest.raises(ValueError, match="3 tables for 4 layers"):
        TritonPageWriter(made.cache, made.tables[1:], kernel)
    eighths = tuple(torch.zeros(4, 4, 2, 16, dtype=torch.uint8) for _ in range(2))
    with pytest.raises(ValueError, match="uint8"):
        TritonPageWriter(PagedCache(eighths[:1], eighths[1:]), (None,), kernel)


def test_a_gpu_has_a_kernel_where_triton_is(monkeypatch):
    from triton.runtime.jit import JITFunction

    made = find_writer(torch.device("cuda"))
    assert isinstance(made.keywords["kernel"], JITFunction)
    assert find_writer(torch.device("meta")) is None
    monkeypatch.setitem(sys.modules, KERNEL, None)
    assert find_writer(torch.device("cuda")) is None


@pytest.mark.parametrize(
    ("capability", "half", "interleaved", "head_dim"),
    [(80, 64, False, 128), (90, 64, True, 128), (90, 16, False, 80)],
)
def test_it_compiles_for_gpus_and_moves_16_bytes_at_once(
    capability, half, interleaved, head_dim, tmp_path, monkeypatch
):
    """No GPU is needed to see what would run on one."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    fixed = {
        "PAGE": 16, "HEADS": 8, "HEAD_DIM": head_dim, "HALF": half, "INTERLEAVED": interleaved,
        "DTYPE": tl.bfloat16, "BITS": tl.uint16, "SIZE": 2, "ALIGN": 16, "TOKENS": 4,
        "HEADS_WIDE": 8, "PAIRS_WIDE": half, "REST_WIDE": 64 if head_dim > 2 * half else 0,
        "WIDE": 128,
    }  # fmt: skip
    numbers = ("page_stride", "slot_stride", "head_stride")
    source = ASTSource(
        fn=importlib.import_module(KERNEL).write_pages,
        signature={"tokens": "*i64", "layers": "*i64", "n_tokens": "i32"}
        | dict.fromkeys(numbers, "i64")
        | dict.fromkeys(fixed, "constexpr"),
        constexprs=fixed,
        attrs={(i,): [["tt.divisibility", 16]] for i in (0, 1, 3, 4, 5)},
    )

    made = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False}
    )

    ptx = made.asm["ptx"]
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx
    assert "ld.global.b16" not in ptx and "st.global.b16" not in ptx
    assert "div.rn.f32" in ptx and "div.full" not in ptx


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["heads first", "slots first"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_gpu_writes_what_torch_writes_there(dtype, form, interleaved):
    made = case(
        dtype=dtype, heads=8, head_dim=128, interleaved=interleaved, form=form, page=16,
        lengths=(40, 300, 7), origins=(0, 0, 200), layers="aab-", first=0,
    )  # fmt: skip
    # 347 tokens do not fit into the table's positions: end where it ends.
    made.pieces, made.slots = (made.pieces[0], Piece("1", 0, 250, 40)), made.slots[:290]
    device = torch.device("cuda")
    cache = PagedCache(
        tuple(view.to(device) for view in made.cache.keys),
        tuple(view.to(device) for view in made.cache.values),
    )
    tables = {
        id(table): RotaryTable.from_rows(table.spec, table.rows, device=device)
        for table in made.tables
        if table is not None
    }
    there = tuple(None if table is None else tables[id(table)] for table in made.tables)
    lent = dict(made.segments)
    lent["0"] = Segment("0", lent["0"].data.to(device), lent["0"].origin, "d")

    find_writer(device)(cache, there).write(made.pieces, lent, made.slots)

    wanted = gather(made.pieces, made.segments, made.layout, there, device=device).cpu()
    made.cache = PagedCache(
        tuple(view.cpu() for view in cache.keys), tuple(view.cpu() for view in cache.values)
    )
    found = made.found()
    assert torch.equal(bits(found[:, 1]), bits(wanted[:, 1]))
    assert (bits(found[:, 0]) != bits(wanted[:, 0])).float().mean() < 1e-3
    torch.testing.assert_close(found[:, 0], wanted[:, 0], rtol=torch.finfo(dtype).eps, atol=1e-5)
