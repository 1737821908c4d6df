"""Worker half: vLLM's caches as tensors with named dims, and the proof that they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from inferscale_sdk.injection.paged import PagedCache, PageWriter, by_channel, find_writer
from inferscale_sdk.injection.pieces import LayerTables, Piece, gather
from inferscale_sdk.kv.segment import Segment

if TYPE_CHECKING:
    from inferscale_sdk.vllm_connector.layers import LayerStack

__all__ = ["paged_cache", "proved_writer"]

log = logging.getLogger(__name__)

_PROOF_TOKENS = 24

# Of the largest key: what float32 may lose where a rotation cancels.
_CANCELLED = 4 * torch.finfo(torch.float32).eps


def proved_writer(stack: LayerStack, tables: LayerTables) -> PageWriter | None:
    """What writes all layers in one pass, ``None`` if there is none here.

    How a backend lays its cache out, and whether the kernel does on this device what torch does,
    is not taken on trust: some tokens are written through the backend, the same ones by the kernel,
    and both must read the same. Only for an engine that has no requests yet: their slots are
    written over. This also compiles the kernel, so that no request waits for it.
    """
    try:
        make = find_writer(stack.device)
        cache = None if make is None else paged_cache(stack)
        writer = None if make is None or cache is None else make(cache, tables)
        if cache is None or writer is None:
            return None
        if _writes_the_same(writer, stack, cache, tables):
            return writer
        log.warning("inferscale: the kernel writes other keys than torch; torch is used")
    except Exception:
        log.warning("inferscale: no kernel to write all layers at once; torch is used",
                    exc_info=True)  # fmt: skip
    return None


def paged_cache(stack: LayerStack) -> PagedCache | None:
    """The caches of all layers as views, ``None`` if they are not plain tensors of tokens."""
    views = [_views(stack, layer) for layer in range(stack.layout.n_layers)]
    found = [view for view in views if view is not None]
    if len(found) < len(views):
        log.info("inferscale: the cache's form is not known; segments are written layer by layer")
        return None
    keys, values = zip(*found, strict=True)
    return PagedCache(keys, values)


def _views(stack: LayerStack, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """One layer's keys and values, each ``[page, slot, kv_head, head_dim]``."""
    for keys, values in _forms(stack.modules[layer].kv_cache, stack):
        if _shows_what_is_written(stack, layer, keys, values):
            return keys, values
    return None


def _forms(cache: Any, stack: LayerStack) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ways to read a cache that fit its shape."""
    layout = stack.layout
    if not isinstance(cache, torch.Tensor) or cache.dtype is not layout.dtype:
        return
    heads, dim = layout.n_kv_heads, layout.head_dim
    forms: list[tuple[torch.Tensor, ...]] = []
    if cache.ndim == 4 and cache.shape[-1] == 2 * dim:
        # [page, kv_head, slot, key and value], and the same with slots before heads
        forms += [(view[..., :dim], view[..., dim:]) for view in (cache.transpose(1, 2), cache)]
        if cache.is_contiguous():
            forms.append(by_channel(cache))
    if cache.ndim == 5:
        # [kv, page, slot, kv_head, head_dim], and the same with pages before kv
        forms += [cache.unbind(kv) for kv in (0, 1) if cache.shape[kv] == 2]
    for keys, values in forms:
        pages, slots, *rest = keys.shape
        fits = rest == [heads, dim] and stack.block_size % slots == 0
        if fits and pages * slots > _PROOF_TOKENS:
            yield keys, values


def _shows_what_is_written(
    stack: LayerStack, layer: int, keys: torch.Tensor, values: torch.Tensor
) -> bool:
    """Whether tokens written through the backend are read where the views have their slots."""
    draw = torch.Generator().manual_seed(layer)
    slots = _some_slots(keys, draw)
    shape = (2, len(slots), *keys.shape[2:])
    made = torch.randn(shape, generator=draw).to(stack.layout.dtype).to(stack.device)
    stack.write(layer, made[0], made[1], slots.to(stack.device))
    return torch.equal(_read(keys, slots), made[0]) and torch.equal(_read(values, slots), made[1])


def _some_slots(view: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Of the first page in order, of the last ones in no order: int64 [token]."""
    pages, page_slots = view.shape[:2]
    near = min(pages, 3) * page_slots
    drawn = pages * page_slots - 1 - torch.randperm(near, generator=draw)
    # Kernels may treat slots that lie side by side otherwise: two thirds of them do.
    side_by_side = torch.arange(min(page_slots, 2 * _PROOF_TOKENS // 3))
    rest = drawn[drawn >= len(side_by_side)][: _PROOF_TOKENS - len(side_by_side)]
    return torch.cat((side_by_side, rest))


def _read(view: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """What a view has in its slots: ``[token, kv_head, head_dim]``."""
    return view[slots // view.shape[1], slots % view.shape[1]]


def _writes_the_same(
    writer: PageWriter, stack: LayerStack, cache: PagedCache, tables: LayerTables
) -> bool:
    """Whether the kernel writes what gathering and the backend write: values to the bit."""
    draw = torch.Generator().manual_seed(0)
    slots = _some_slots(cache.keys[0], draw)
    n = len(slots)
    data = torch.randn(stack.layout.shape(n), generator=draw).to(stack.layout.dtype)
    segment = Segment("proof", data, 1, "0" * 32)
    # From host memory and from the device: two tokens stay where they were, the others move.
    both = {"proof": segment, "there": Segment("there", data.to(stack.device), 9, "0" * 32)}
    pieces = (Piece("proof", 0, 2, 1), Piece("there", 2, n, 3))

    def read() -> torch.Tensor:
        pairs = zip(cache.keys, cache.values, strict=True)
        return torch.stack([torch.stack((_read(k, slots), _read(v, slots))) for k, v in pairs])

    wanted = gather(pieces, both, stack.layout, tables, device=stack.device)
    for layer, (keys, values) in enumerate(wanted):
        stack.write(layer, keys, values, slots.to(stack.device))
    theirs = read()
    # Nothing of theirs is left when ours is read.
    blank = torch.zeros_like(wanted[0, 0])
    for layer in range(stack.layout.n_layers):
        stack.write(layer, blank, blank, slots.to(stack.device))
    writer.write(pieces, both, slots)
    return _same(read(), theirs)


def _same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Values to the bit, keys to the last place: ``[layer, kv, token, kv_head, head_dim]``."""
    eps = torch.finfo(ours.dtype).eps
    keys, wanted = ours[:, 0].float(), theirs[:, 0].float()
    return torch.equal(ours[:, 1], theirs[:, 1]) and torch.allclose(
        keys, wanted, rtol=eps, atol=float(wanted.abs().max()) * _CANCELLED
    )
