"""What page writers are tested on: a cache, what is written, and what it should hold then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inferscale_sdk.injection.paged import PagedCache, WriterFactory
from inferscale_sdk.injection.pieces import Piece, gather
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.rope.table import RotaryTable

CPU = torch.device("cpu")
N_POSITIONS = 300


@dataclass
class Case:
    """A cache, what is written into it, and what it should hold then."""

    cache: PagedCache
    layout: SegmentLayout
    tables: tuple[RotaryTable | None, ...]
    segments: dict[str, Segment]
    pieces: tuple[Piece, ...]
    slots: torch.Tensor

    def expected(self) -> torch.Tensor:
        return gather(self.pieces, self.segments, self.layout, self.tables, device=CPU)

    def found(self) -> torch.Tensor:
        """``[layer, kv, token, kv_head, head_dim]``."""
        page, slot = self.slots // self.page_size, self.slots % self.page_size
        read = [
            torch.stack((keys[page, slot], values[page, slot]))
            for keys, values in zip(self.cache.keys, self.cache.values, strict=True)
        ]
        return torch.stack(read)

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[1]


def paged_cache(layout: SegmentLayout, form: str, pages: int, size: int) -> PagedCache:
    """Caches in the forms that backends of vLLM have, every byte 0x55."""
    if form == "by channel":
        return by_channel(layout, pages, size)
    heads, dim = layout.n_kv_heads, layout.head_dim
    shape = {
        "heads first": (pages, heads, size, 2 * dim),
        "slots first": (pages, size, heads, 2 * dim),
        "two halves": (2, pages, size, heads, dim),
        "two in a page": (pages, 2, size, heads, dim),
    }[form]
    keys, values = [], []
    for _ in range(layout.n_layers):
        raw = torch.zeros(shape, dtype=layout.dtype)
        raw.view(torch.uint8).fill_(0x55)
        if form == "heads first":
            raw = raw.transpose(1, 2)
        if form in ("heads first", "slots first"):
            key, value = raw.split(dim, dim=-1)
        else:
            key, value = raw.unbind(0 if form == "two halves" else 1)
        keys.append(key)
        values.append(value)
    return PagedCache(tuple(keys), tuple(values))


def by_channel(layout: SegmentLayout, pages: int, size: int) -> PagedCache:
    """As vLLM's attention on a CPU has them: of each page and head all keys, then all values."""
    heads, dim = layout.n_kv_heads, layout.head_dim
    keys, values = [], []
    for _ in range(layout.n_layers):
        raw = torch.zeros(pages, heads, 2, size * dim, dtype=layout.dtype)
        raw.view(torch.uint8).fill_(0x55)
        keys.append(raw[:, :, 0].view(pages, heads, dim, size).permute(0, 3, 1, 2))
        values.append(raw[:, :, 1].view(pages, heads, size, dim).transpose(1, 2))
    return PagedCache(tuple(keys), tuple(values))


def bits(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.int32 if data.element_size() == 4 else torch.int16)


def case(
    *,
    dtype: torch.dtype = torch.bfloat16,
    heads: int = 2,
    head_dim: int = 16,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    lengths: tuple[int, ...] = (3, 5, 2),
    origins: tuple[int, ...] = (0, 120, 40),
    first: int = 0,
    page: int = 4,
    form: str = "slots first",
    layers: str = "aba-",
    seed: int = 0,
) -> Case:
    """``layers`` has a letter per rotation and ``-`` for a layer without positions."""
    draw = torch.Generator().manual_seed(seed)
    layout = SegmentLayout(len(layers), heads, head_dim, dtype)
    made = {
        name: RotaryTable(
            RopeSpec.default(
                head_dim, 10.0 ** (2 + i), rotary_dim=rotary_dim, interleaved=interleaved
            ),
            N_POSITIONS,
            rounding=dtype,
        )
        for i, name in enumerate(sorted(set(layers) - {"-"}))
    }
    segments, pieces, at = {}, [], first
    for i, (n, origin) in enumerate(zip(lengths, origins, strict=False)):
        data = (torch.randn(layout.shape(n), generator=draw) * 3).to(dtype)
        data[:, :, 0, 0, :3] = -0.0
        segments[str(i)] = Segment(str(i), data, origin, "d")
        pieces.append(Piece(str(i), 0, n, at))
        at += n
    total = at - first
    pages = -(-total // page) + 3
    return Case(
        paged_cache(layout, form, pages, page),
        layout,
        tuple(made.get(name) for name in layers),
        segments,
        tuple(pieces),
        torch.randperm(pages * page, generator=draw)[:total],
    )


def check(
    made: Case, writer: WriterFactory, lent: dict[str, Any] | None = None, *, exact: bool = True
) -> None:
    """Written where it belongs, as torch's chain would have written it, and nothing else.

    Args:
        exact: Whether keys have torch's bits, or may differ in the last one.
    """
    untouched = torch.ones(made.cache.n_slots, dtype=torch.bool)
    untouched[made.slots] = False
    own = writer(made.cache, made.tables)
    assert own is not None

    own.write(made.pieces, made.segments if lent is None else lent, made.slots)

    found, expected = made.found(), made.expected()
    assert torch.equal(bits(found[:, 1]), bits(expected[:, 1])), "values"
    if exact:
        assert torch.equal(bits(found[:, 0]), bits(expected[:, 0])), "keys"
    eps = torch.finfo(made.layout.dtype).eps
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=eps, atol=1e-5)
    for view in (*made.cache.keys, *made.cache.values):
        rest = view.reshape(made.cache.n_slots, -1)[untouched].contiguous()
        assert (rest.view(torch.uint8) == 0x55).all()
