"""Finding vLLM's caches, and not trusting a kernel that was not seen to do what torch does."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import connector_harness  # noqa: F401 - imports vllm, whose own warnings it switches off
import pytest
import torch

from inferscale_sdk.injection.paged_triton import TritonPageWriter
from inferscale_sdk.injection.pieces import Piece
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.rope.table import RotaryTable
from inferscale_sdk.testing.interpreted_kernel import interpreted_kernel
from inferscale_sdk.vllm_connector import loader as loader_module
from inferscale_sdk.vllm_connector import pages as pages_module
from inferscale_sdk.vllm_connector.layers import LayerStack
from inferscale_sdk.vllm_connector.loader import Loader
from inferscale_sdk.vllm_connector.metadata import LoadPlan
from inferscale_sdk.vllm_connector.pages import paged_cache, proved_writer

pytest.importorskip("triton", reason="has no wheels for this system")

LAYOUT = SegmentLayout(n_layers=2, n_kv_heads=4, head_dim=16, dtype=torch.bfloat16)
PAGE, PAGES = 8, 6
SPEC = RopeSpec.default(16, 1e4)
TABLES = tuple([RotaryTable(SPEC, 128, rounding=torch.bfloat16)] * 2)

SHAPES = {
    "heads first": (PAGES, 4, PAGE, 32),
    "slots first": (PAGES, PAGE, 4, 32),
    "two halves": (2, PAGES, PAGE, 4, 16),
    "two in a page": (PAGES, 2, PAGE, 4, 16),
    "as many heads as slots": (PAGES, PAGE, PAGE, 32),
    "by channel": (PAGES, 4, PAGE, 32),
}


def views(cache: torch.Tensor, form: str) -> tuple[torch.Tensor, ...]:
    if form in ("heads first", "as many heads as slots"):
        return cache.transpose(1, 2).split(16, dim=-1)
    if form == "slots first":
        return cache.split(16, dim=-1)
    if form == "by channel":
        halves = cache.view(PAGES, 4, 2, PAGE * 16)
        keys = halves[:, :, 0].view(PAGES, 4, 16, PAGE).permute(0, 3, 1, 2)
        return keys, halves[:, :, 1].view(PAGES, 4, PAGE, 16).transpose(1, 2)
    return cache.unbind(0 if form == "two halves" else 1)


class Backend:
    """Writes as a backend of vLLM does, and counts how often."""

    def __init__(self, form: str, scale: float = 1.0) -> None:
        self.form, self.scale, self.calls = form, scale, 0

    def do_kv_cache_update(
        self, layer: Any, key: Any, value: Any, kv_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        self.calls += 1
        keys, values = views(kv_cache, self.form)
        page = keys.shape[1]
        keys[slots // page, slots % page] = key * self.scale
        values[slots // page, slots % page] = value


def stack_of(form: str, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> LayerStack:
    shape = SHAPES[form]
    layout = LAYOUT
    if form == "as many heads as slots":
        layout = SegmentLayout(2, PAGE, 16, torch.bfloat16)
    modules = tuple(
        SimpleNamespace(impl=Backend(form, scale), kv_cache=torch.zeros(shape, dtype=dtype))
        for _ in range(2)
    )
    return LayerStack(
        names=("0", "1"), modules=modules, specs=(SPEC, SPEC), layout=layout,
        device=torch.device("cpu"), block_size=PAGE,
    )  # fmt: skip


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel under triton's interpreter, taken for this device's."""
    made = interpreted_kernel()
    return use(monkeypatch, made)


def use(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> Any:
    monkeypatch.setattr(
        pages_module, "find_writer", lambda device: partial(TritonPageWriter, kernel=kernel)
    )
    return kernel


@pytest.mark.parametrize("form", SHAPES)
def test_every_form_of_cache_is_found(form: str) -> None:
    stack = stack_of(form)

    found = paged_cache(stack)

    assert found is not None
    for module, keys, values in zip(stack.modules, found.keys, found.values, strict=True):
        own_keys, own_values = views(module.kv_cache, form)
        assert (keys.data_ptr(), keys.stride()) == (own_keys.data_ptr(), own_keys.stride())
        assert (values.data_ptr(), values.stride()) == (own_values.data_ptr(), own_values.stride())


def test_a_cache_that_is_not_contiguous_is_found_as_well() -> None:
    stack = stack_of("heads first")
    for module in stack.modules:
        wider = torch.zeros(PAGES, 5, PAGE, 32, dtype=torch.bfloat16)
        module.kv_cache = wider[:, :4]

    assert paged_cache(stack) is not None


@pytest.mark.parametrize(
    "stack",
    [
        stack_of("slots first", dtype=torch.uint8),  # quantised
        stack_of("slots first", scale=2.0),  # scaled
        LayerStack(("0",), (SimpleNamespace(kv_cache=[]),), (SPEC,),
                   SegmentLayout(1, 4, 16, torch.bfloat16), torch.device("cpu"), PAGE),
    ],
)  # fmt: skip
def test_a_cache_of_an_unknown_form_is_left_to_the_backend(stack: LayerStack) -> None:
    assert paged_cache(stack) is None


def load_both(monkeypatch: pytest.MonkeyPatch, form: str) -> tuple[LayerStack, LayerStack]:
    """The same plan carried out by the kernel, and by single steps."""
    draw = torch.Generator().manual_seed(3)
    stacks = stack_of(form), stack_of(form)
    made = {
        name: Segment(
            name, torch.randn(stacks[0].layout.shape(n), generator=draw).bfloat16(), o, "d"
        )
        for name, n, o in (("a", 9, 0), ("b", 5, 70))
    }
    plan = LoadPlan("r", (4, 1), 0, 14, (Piece("a", 0, 9, 0), Piece("b", 0, 5, 9)))
    for stack, writer in zip(stacks, (proved_writer, lambda *_: None), strict=True):
        monkeypatch.setattr(loader_module, "turning_kernel", lambda: None)
        monkeypatch.setattr(loader_module, "proved_writer", writer)
        loader = Loader(stack, TABLES)
        loader._writer = writer(stack, TABLES)
        for module in stack.modules:
            module.kv_cache.zero_()
            module.impl.calls = 0
        loader.tables = (TABLES[0], None)
        loader.load(plan, made)
    return stacks


@pytest.mark.parametrize("form", ["heads first", "two halves"])
def test_one_launch_writes_what_single_steps_write(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    ours, theirs = load_both(monkeypatch, form)

    assert [module.impl.calls for module in ours.modules] == [0, 0]
    assert [module.impl.calls for module in theirs.modules] == [1, 1]
    for one, other in zip(ours.modules, theirs.modules, strict=True):
        assert torch.equal(one.kv_cache.view(torch.int16), other.kv_cache.view(torch.int16))


def test_a_kernel_that_turns_otherwise_is_not_used(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **fixed: kernel[grid](*args, **{**fixed, "INTERLEAVED": True})

    assert proved_writer(stack_of("heads first"), TABLES) is not None
    use(monkeypatch, Wrong())

    assert proved_writer(stack_of("heads first"), TABLES) is None
    assert "torch is used" in caplog.text


def test_a_kernel_that_does_not_run_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, {})

    assert proved_writer(stack_of("heads first"), TABLES) is None
    assert "torch is used" in caplog.text


@pytest.mark.parametrize("form", ["heads first", "by channel"])
def test_on_a_cpu_keys_by_channel_have_a_kernel_and_others_none(form: str) -> None:
    assert (proved_writer(stack_of(form), TABLES) is not None) == (form == "by channel")


def test_on_a_cpu_all_layers_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = load_both(monkeypatch, "by channel")

    assert [module.impl.calls for module in ours.modules] == [0, 0]
    for one, other in zip(ours.modules, theirs.modules, strict=True):
        assert torch.equal(one.kv_cache.view(torch.int16), other.kv_cache.view(torch.int16))
