"""Stored segments side by side, their keys turned to where they now stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch

from inferscale_sdk.injection.fused import fits, turning_kernel
from inferscale_sdk.injection.match import Wanted
from inferscale_sdk.kv.layout import KEY, SegmentLayout
from inferscale_sdk.kv.rows import Lent
from inferscale_sdk.rope.rotate import rotate_into
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["LayerTables", "Piece", "gather", "one_thread", "pieces_between"]

LayerTables = Sequence[RotaryTable | None]
"""A rotation table per layer; ``None`` for a layer without positions."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` to ``stop`` of a segment, to stand from prompt position ``position``."""

    key: str
    start: int
    stop: int
    position: int


def pieces_between(segments: Sequence[Wanted], first: int, last: int) -> tuple[Piece, ...]:
    """The parts of contiguous ``segments`` that cover prompt tokens ``first`` to ``last``."""
    pieces = []
    position = 0
    for segment in segments:
        start, stop = max(position, first), min(position + segment.n_tokens, last)
        if start < stop:
            pieces.append(Piece(segment.key, start - position, stop - position, start))
        position += segment.n_tokens
    return tuple(pieces)


def gather(
    pieces: Sequence[Piece],
    segments: Mapping[str, Lent],
    layout: SegmentLayout,
    tables: LayerTables,
    *,
    device: torch.device,
) -> torch.Tensor:
    """The pieces as the model would have written them at their new positions.

    Stored keys stand rotated at their segment's origin; a piece that shall stand elsewhere is
    turned by the difference (Chunked RoPE, Theorem 6, in its delta form).

    Args:
        pieces: Gapless, in prompt order.
        segments: By key.
        layout: Of the loaded model.
        tables: Of the loaded model.
        device: Where the result is wanted.

    Returns:
        ``[layer, kv, token, kv_head, head_dim]`` on ``device``, nobody else's memory.

    Raises:
        ValueError: There are no pieces.
        KeyError: A segment is not there.
        CorruptSegment: A segment does not have this model's shape.
    """
    first, last = _extent(pieces)
    with one_thread(device):
        data = _side_by_side(pieces, segments, layout, device).to(device, non_blocking=True)
        old = _origins(pieces, segments).to(device)  # [token]
        new = torch.arange(first, last, device=device)
        if not torch.equal(old, new):
            _turn(data, tables, old, new)
    return data


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """For a few milliseconds in hundreds of small steps on a CPU.

    Each would wake the other threads and wait for the last of them, which takes longer than what
    it saves, and much longer on a processor that has something else to do.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _extent(pieces: Sequence[Piece]) -> tuple[int, int]:
    """First and last prompt position, the last exclusive."""
    if not pieces:
        raise ValueError("a load plan without pieces; at least one is needed")
    end = pieces[-1]
    return pieces[0].position, end.position + end.stop - end.start


def _side_by_side(
    pieces: Sequence[Piece],
    segments: Mapping[str, Lent],
    layout: SegmentLayout,
    device: torch.device,
) -> torch.Tensor:
    first, last = _extent(pieces)
    # What lies on the device already need not come back to be put together.
    there = all(segments[piece.key].device == device for piece in pieces)
    # [layer, kv, token, kv_head, head_dim]
    data = layout.empty(last - first, device=device if there else "cpu")
    for piece in pieces:
        tokens = segments[piece.key].take(piece.start, piece.stop)
        layout.check(tokens)
        at = piece.position - first
        data[:, :, at : at + piece.stop - piece.start].copy_(tokens)
    return data


def _origins(pieces: Sequence[Piece], segments: Mapping[str, Lent]) -> torch.Tensor:
    """The position each token's key was rotated at: int64 [token]."""
    parts = []
    for piece in pieces:
        origin = segments[piece.key].origin
        parts.append(torch.arange(origin + piece.start, origin + piece.stop))
    return torch.cat(parts)


def _turn(data: torch.Tensor, tables: LayerTables, old: torch.Tensor, new: torch.Tensor) -> None:
    """Turn the keys of ``[layer, kv, token, kv_head, head_dim]`` in place.

    Layers of one table are turned at once.
    """
    start = 0
    for table, same in groupby(tables):
        stop = start + len(list(same))
        if table is not None:
            _turn_layers(data[start:stop], table, old, new)
        start = stop


def _turn_layers(
    data: torch.Tensor, table: RotaryTable, old: torch.Tensor, new: torch.Tensor
) -> None:
    cos, sin = table.moves(old, new)
    if fits(data, interleaved=table.spec.interleaved):
        kernel = turning_kernel()
        if kernel is not None:
            kernel(data, cos, sin)
            return
    keys = data[:, KEY]  # [layer, token, kv_head, head_dim]
    rotate_into(
        keys,
        keys,
        cos,
        sin,
        interleaved=table.spec.interleaved,
        rotary_dim=table.spec.rotary_dim,
    )
