"""Segments written straight into a paged cache: gathered, turned and scattered in one launch.

The chain of :func:`~inferscale_sdk.injection.pieces.gather` and a write for each layer reads and
writes everything several times, in hundreds of launches. Here one kernel takes every token's keys
and values from where they lie, turns the keys and writes both to their pages, for all layers. It
runs where triton compiles for the cache's device.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.injection.pieces import LayerTables, Piece
from inferscale_sdk.kv.layout import SegmentLayout, dtype_name
from inferscale_sdk.kv.rows import Lent, Rows
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["PageWriter", "PagedCache", "write_kernel"]

log = logging.getLogger(__name__)

_TILE = 2048  # pairs of channels that a program turns at once
_MOST_TOKENS = 16
_ALIGN = 16  # bytes that a thread reads at once, if every address allows it


def write_kernel(device: torch.device) -> Any | None:
    """The kernel for that device, ``None`` where there is none."""
    if device.type != "cuda":
        return None
    try:
        from inferscale_sdk.injection.triton_kernel import write_pages
    except ImportError:
        log.debug("inferscale: triton is not installed; segments are written layer by layer")
        return None
    return write_pages


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """The caches of all layers, as views with named dims.

    Args:
        keys: By layer, each ``[page, slot, kv_head, head_dim]``; the last dim contiguous.
        values: The same.

    Raises:
        ValueError: They differ in shape, strides, dtype or device.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def __post_init__(self) -> None:
        kinds = {(t.shape, t.stride(), t.dtype, t.device) for t in (*self.keys, *self.values)}
        if len(kinds) != 1 or len(self.keys) != len(self.values):
            raise ValueError(f"caches of layers differ: {len(kinds)} kinds")
        one = self.keys[0]
        if one.ndim != 4 or one.stride(3) != 1:
            raise ValueError(
                f"a cache of shape {list(one.shape)} and strides {list(one.stride())} is not "
                "[page, slot, kv_head, head_dim] with contiguous channels"
            )

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.keys[0].device

    @property
    def layout(self) -> SegmentLayout:
        """Of the segments that fit."""
        _, _, kv_head, head_dim = self.keys[0].shape
        return SegmentLayout(len(self.keys), kv_head, head_dim, self.keys[0].dtype)

    @property
    def n_slots(self) -> int:
        """Slots of all pages."""
        return self.keys[0].shape[0] * self.keys[0].shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Layers that one launch serves: the same channels turn, by whichever angles."""

    layers: torch.Tensor
    """int64 ``[layer, field]``, see ``triton_kernel.LAYER_FIELDS``."""
    aligned: bool
    fixed: Mapping[str, Any]
    """What the kernel is compiled for."""


class PageWriter:
    """Writes segments into a paged cache. One launch if the same channels turn in all layers.

    Args:
        cache: Where to.
        tables: Rotation table per layer, on the cache's device; ``None`` for a layer without
            positions.
        kernel: :func:`~inferscale_sdk.injection.triton_kernel.write_pages`.

    Raises:
        ValueError: There is not a table for each layer, one lies on another device, or the cache
            holds numbers of another kind than the kernel knows.
    """

    def __init__(self, cache: PagedCache, tables: LayerTables, kernel: Any) -> None:
        if len(tables) != len(cache.keys):
            raise ValueError(f"{len(tables)} tables for {len(cache.keys)} layers")
        from inferscale_sdk.injection.triton_kernel import ELEMENTS

        if (name := dtype_name(cache.layout.dtype)) not in ELEMENTS:
            raise ValueError(f"a cache of {name} is none of {', '.join(ELEMENTS)}")
        self._cache = cache
        self._layout = cache.layout
        self._element = ELEMENTS[name]
        self._kernel = kernel
        self._tables = tuple(tables)  # their rows are read by address
        shown = [table for table in tables if table is not None]
        if any(table.rows.device != cache.device for table in shown):
            raise ValueError(f"a rotation table is not on {cache.device}")
        self._n_positions = min((table.rows.shape[1] for table in shown), default=None)
        self._groups = [self._group(*turn, layers) for turn, layers in self._by_turn()]

    def with_tables(self, tables: LayerTables) -> PageWriter:
        """The same with other rotation tables."""
        return PageWriter(self._cache, tables, self._kernel)

    def _by_turn(self) -> list[tuple[tuple[int, bool], list[int]]]:
        """Layers by which channels turn; those without positions go with others."""
        found: dict[tuple[int, bool], list[int]] = {}
        for index, table in enumerate(self._tables):
            if table is not None:
                turn = (table.spec.rotary_dim // 2, table.spec.interleaved)
                found.setdefault(turn, []).append(index)
        still = [index for index, table in enumerate(self._tables) if table is None]
        if still:
            host = next(iter(found), (0, False))
            found.setdefault(host, []).extend(still)
        return list(found.items())

    def _group(self, half: int, interleaved: bool, layers: Sequence[int]) -> _Group:
        rows = [[index, *self._addresses(index, self._tables[index])] for index in layers]
        addresses = [address for row in rows for address in row[1:]]
        size = self._layout.dtype.itemsize
        strides = [stride * size for stride in self._cache.keys[0].stride()[:3]]
        heads, wide = _power(self._layout.n_kv_heads), _power(self._layout.head_dim)
        pairs = _power(half) or 1
        per_token = heads * (pairs if half else max(1, wide // 2))
        fixed = {
            "PAGE": self._cache.keys[0].shape[1],
            "HEADS": self._layout.n_kv_heads,
            "HEAD_DIM": self._layout.head_dim,
            "HALF": half,
            "INTERLEAVED": interleaved,
            "SIZE": size,
            "TOKENS": max(1, min(_MOST_TOKENS, _TILE // per_token)),
            "HEADS_WIDE": heads,
            "PAIRS_WIDE": pairs,
            "REST_WIDE": _power(self._layout.head_dim - 2 * half),
            "WIDE": wide,
        }
        return _Group(
            layers=torch.tensor(rows, dtype=torch.int64).to(self._cache.device),
            aligned=not any(n % _ALIGN for n in (*addresses, *strides)),
            fixed=fixed,
        )

    def _addresses(self, layer: int, table: RotaryTable | None) -> tuple[int, int, int, int]:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        cos, sin = (0, 0) if table is None else (row.data_ptr() for row in table.rows)
        return keys.data_ptr(), values.data_ptr(), cos, sin

    def write(
        self, pieces: Sequence[Piece], segments: Mapping[str, Lent], slots: torch.Tensor
    ) -> None:
        """Write pieces as the model would have written them at their new positions.

        Segments may lie on the cache's device or in host memory. On a GPU this returns before it
        is done; what is queued after it on the current stream comes after it.

        Args:
            pieces: Gapless, in prompt order.
            segments: By key.
            slots: Where each token goes, int64 [token] in host memory.

        Raises:
            ValueError: There are no pieces, or not a slot of this cache for each token.
            KeyError: A segment is not there.
            CorruptSegment: A segment does not have this model's shape, or stood at a position
                that the model does not have.
        """
        if not pieces:
            raise ValueError("a load plan without pieces; at least one is needed")
        for piece in pieces:
            self._check(piece, segments[piece.key])
        staged = self._staged(pieces, segments)
        table, aligned = self._token_table(pieces, segments, staged, slots)
        tokens = table.to(self._cache.device, non_blocking=True)
        for group in self._groups:
            self._launch(group, tokens, aligned and group.aligned)

    def _check(self, piece: Piece, lent: Lent) -> None:
        data = lent.data
        if not 0 <= piece.start < piece.stop <= lent.n_tokens:
            raise ValueError(f"{piece} of a segment of {lent.n_tokens} tokens")
        # Rows as the segment they would be; a view, nothing is copied.
        self._layout.check(data.permute(1, 2, 0, 3, 4) if isinstance(lent, Rows) else data)

    def _is_here(self, lent: Lent) -> bool:
        return lent.device == self._cache.device

    def _pinned(self) -> bool:
        return self._cache.device.type == "cuda"

    def _staged(self, pieces: Sequence[Piece], segments: Mapping[str, Lent]) -> torch.Tensor | None:
        """The pieces that lie elsewhere, side by side and here.

        Returns:
            ``[layer, kv, token, kv_head, head_dim]``.
        """
        away = [piece for piece in pieces if not self._is_here(segments[piece.key])]
        n_tokens = sum(piece.stop - piece.start for piece in away)
        if not n_tokens:
            return None
        shape = self._layout.shape(n_tokens)
        data = torch.empty(shape, dtype=self._layout.dtype, pin_memory=self._pinned())
        at = 0
        for piece in away:
            tokens = segments[piece.key].take(piece.start, piece.stop)
            data[:, :, at : at + tokens.shape[2]].copy_(tokens)
            at += tokens.shape[2]
        return data.to(self._cache.device, non_blocking=True)

    def _token_table(
        self,
        pieces: Sequence[Piece],
        segments: Mapping[str, Lent],
        staged: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, bool]:
        """What the kernel wants to know of each token, and whether sources are aligned.

        Returns:
            int64 ``[field, token]``, see
            :data:`~inferscale_sdk.injection.triton_kernel.TOKEN_FIELDS`.
        """
        bases, steps, planes, moves, rows = [], [], [], [], []
        n_staged = 0
        for piece in pieces:
            lent, n = segments[piece.key], piece.stop - piece.start
            if self._is_here(lent):
                base, step, plane, index = _place(lent, piece.start, piece.stop)
            else:
                assert staged is not None
                base, step, plane = _runs(staged)
                index = np.arange(n_staged, n_staged + n)
                n_staged += n
            bases.append(base)
            steps.append(step)
            planes.append(plane)
            rows.append(index)
            moves.append(lent.origin + piece.start - piece.position)
        counts = [len(index) for index in rows]
        n_tokens = sum(counts)
        table = torch.empty((5, n_tokens), dtype=torch.int64, pin_memory=self._pinned())
        source, plane_bytes, slot, old, new = table.numpy()
        source[:] = np.repeat(bases, counts) + np.concatenate(rows) * np.repeat(steps, counts)
        plane_bytes[:] = np.repeat(planes, counts)
        slot[:] = self._checked_slots(slots, n_tokens)
        new[:] = np.arange(pieces[0].position, pieces[0].position + n_tokens)
        old[:] = new + np.repeat(moves, counts)
        self._check_positions(old, new)
        return table, not any(n % _ALIGN for n in (*bases, *steps, *planes))

    def _checked_slots(self, slots: torch.Tensor, n_tokens: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = slots.numpy()
        if found.shape != (n_tokens,) or found.min() < 0 or found.max() >= self._cache.n_slots:
            raise ValueError(
                f"{list(found.shape)} slots for {n_tokens} tokens, or one that is not among the "
                f"cache's {self._cache.n_slots}"
            )
        return found

    def _check_positions(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        last = int(max(old.max(), new.max()))
        if self._n_positions is not None and last >= self._n_positions:
            raise CorruptSegment(
                f"position {last} is not among the model's {self._n_positions}; "
                "encode the segment again with the model that is loaded"
            )

    def _launch(self, group: _Group, tokens: torch.Tensor, aligned: bool) -> None:
        page, slot, head, _ = self._cache.keys[0].stride()
        n_tokens = tokens.shape[1]
        dtype, bits = self._element
        self._kernel[(-(-n_tokens // group.fixed["TOKENS"]), group.layers.shape[0])](
            tokens,
            group.layers,
            n_tokens,
            page,
            slot,
            head,
            DTYPE=dtype,
            BITS=bits,
            ALIGN=_ALIGN if aligned else self._layout.dtype.itemsize,
            **group.fixed,
            # Every operation is rounded by itself, as torch's are.
            enable_fp_fusion=False,
        )


def _place(lent: Lent, start: int, stop: int) -> tuple[int, int, int, NDArray[np.int64]]:
    """Address, bytes from row to row, bytes from keys to values, and the rows of some tokens."""
    if isinstance(lent, Rows):
        plane = lent.data[0, 0, 0].nbytes
        return lent.data.data_ptr(), lent.data[0].nbytes, plane, lent.slots[start:stop]
    return (*_runs(lent.data), np.arange(start, stop))


def _runs(data: torch.Tensor) -> tuple[int, int, int]:
    """The same of a contiguous ``[layer, kv, token, kv_head, head_dim]``."""
    return data.data_ptr(), data[0, 0, 0].nbytes, data[0, 0].nbytes


def _power(n: int) -> int:
    """The power of two from ``n`` on; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0
