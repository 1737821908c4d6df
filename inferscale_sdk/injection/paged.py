"""Segments written straight into a paged cache: gathered, turned and scattered in one pass.

The chain of :func:`~inferscale_sdk.injection.pieces.gather` and a write for each layer reads and
writes everything several times, in hundreds of launches. A writer takes every token's keys and
values from where they lie, turns the keys and writes both to their pages, for all layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.injection.pieces import LayerTables, Piece
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.rows import Lent, Rows

__all__ = [
    "ALIGN",
    "PageWriter",
    "PagedCache",
    "TokenTable",
    "WriterFactory",
    "by_channel",
    "find_writer",
]

ALIGN = 16
"""Bytes that a thread of a GPU reads at once, if every address allows it."""


def find_writer(device: torch.device) -> WriterFactory | None:
    """How pages are written on that device in one pass, ``None`` where that is not known."""
    if device.type == "cuda":
        from inferscale_sdk.injection.paged_triton import triton_writer

        return triton_writer()
    if device.type == "cpu":
        from inferscale_sdk.injection.paged_host import host_writer

        return host_writer()
    return None


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """The caches of all layers, as views with named dims.

    Args:
        keys: By layer, each ``[page, slot, kv_head, head_dim]``, any strides.
        values: The same.

    Raises:
        ValueError: They differ in shape, dtype or device, or layers differ in strides.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def __post_init__(self) -> None:
        kinds = {(t.shape, t.dtype, t.device) for t in (*self.keys, *self.values)}
        steps = [{t.stride() for t in tensors} for tensors in (self.keys, self.values)]
        if len(kinds) != 1 or max(map(len, steps)) != 1 or len(self.keys) != len(self.values):
            raise ValueError("caches of layers differ in shape, strides, dtype or device")
        if self.keys[0].ndim != 4:
            raise ValueError(
                f"a cache of shape {list(self.keys[0].shape)} is not "
                "[page, slot, kv_head, head_dim]"
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


def by_channel(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of which each page and head has all keys, by channel, and then all values.

    So does vLLM's attention on a CPU, except with AMX.

    Args:
        cache: ``[page, kv_head, slot, key and value]``, contiguous.

    Returns:
        Keys and values as views, each ``[page, slot, kv_head, head_dim]``.
    """
    pages, heads, slots, both = cache.shape
    dim = both // 2
    halves = cache.view(pages, heads, 2, slots * dim)
    keys = halves[:, :, 0].view(pages, heads, dim, slots).permute(0, 3, 1, 2)
    values = halves[:, :, 1].view(pages, heads, slots, dim).transpose(1, 2)
    return keys, values


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """What a kernel wants to know of each token.

    Args:
        fields: int64 ``[field, token]`` in host memory: address of its keys in the first layer;
            bytes from its keys to its values; slot; old position; new position.
        aligned: Whether all addresses are multiples of :data:`ALIGN`.
        held: Memory that the addresses point to and nobody else holds.
    """

    fields: torch.Tensor
    aligned: bool
    held: torch.Tensor | None


class PageWriter(ABC):
    """Writes segments into a paged cache.

    Args:
        cache: Where to.
        tables: Rotation table per layer, on the cache's device; ``None`` for a layer without
            positions.

    Raises:
        ValueError: There is not a table for each layer, or one lies on another device.
    """

    def __init__(self, cache: PagedCache, tables: LayerTables) -> None:
        if len(tables) != len(cache.keys):
            raise ValueError(f"{len(tables)} tables for {len(cache.keys)} layers")
        self._cache = cache
        self._layout = cache.layout
        self._tables = tuple(tables)
        shown = [table for table in tables if table is not None]
        if any(table.rows.device != cache.device for table in shown):
            raise ValueError(f"a rotation table is not on {cache.device}")
        self._n_positions = min((table.rows.shape[1] for table in shown), default=None)

    @abstractmethod
    def with_tables(self, tables: LayerTables) -> Self:
        """The same with other rotation tables."""

    @abstractmethod
    def _launch(self, tokens: TokenTable) -> None:
        """Write all tokens of all layers."""

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
        self._check(pieces, segments)
        staged = self._staged(pieces, segments)
        self._launch(self._token_table(pieces, segments, staged, slots))

    def _check(self, pieces: Sequence[Piece], segments: Mapping[str, Lent]) -> None:
        tensors = {}  # most segments lie in one
        for piece in pieces:
            lent = segments[piece.key]
            if not 0 <= piece.start < piece.stop <= lent.n_tokens:
                raise ValueError(f"{piece} of a segment of {lent.n_tokens} tokens")
            tensors[id(lent.data)] = lent
        for lent in tensors.values():
            # Rows as the segment they would be; a view, nothing is copied.
            rows = isinstance(lent, Rows)
            self._layout.check(lent.data.permute(1, 2, 0, 3, 4) if rows else lent.data)

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
    ) -> TokenTable:
        found, moves, rows = [], [], []
        runs: dict[int, _Run] = {}
        n_staged = 0
        for piece in pieces:
            lent, n = segments[piece.key], piece.stop - piece.start
            data, index = lent.data, np.arange(piece.start, piece.stop)
            if by_row := isinstance(lent, Rows):
                index = lent.slots[piece.start : piece.stop]
            if not self._is_here(lent):
                assert staged is not None
                data, index, by_row = staged, np.arange(n_staged, n_staged + n), False
                n_staged += n
            if (run := runs.get(id(data))) is None:
                run = runs[id(data)] = _run(data, by_row=by_row)
            found.append(run)
            moves.append(lent.origin + piece.start - piece.position)
            rows.append(index)
        counts = [len(index) for index in rows]
        base, step, plane = np.repeat(np.array(found, np.int64).T, counts, axis=1)
        table = torch.empty((5, len(base)), dtype=torch.int64, pin_memory=self._pinned())
        source, planes, slot, old, new = table.numpy()
        source[:] = base + np.concatenate(rows) * step
        planes[:] = plane
        slot[:] = self._checked_slots(slots, len(base))
        new[:] = np.arange(pieces[0].position, pieces[0].position + len(base))
        old[:] = new + np.repeat(moves, counts)
        self._check_positions(old, new)
        aligned = not any(n % ALIGN for run in runs.values() for n in run)
        return TokenTable(table, aligned, staged)

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


class _Run(NamedTuple):
    """Tokens of one tensor. All in bytes."""

    base: int
    """Address of the first one's keys in the first layer."""
    row: int
    """From one token to the next."""
    plane: int
    """From keys to values."""


def _run(data: torch.Tensor, *, by_row: bool) -> _Run:
    """Of ``[slot, layer, kv, kv_head, head_dim]``, or of ``[layer, kv, token, …]``."""
    steps = [step * data.itemsize for step in data.stride()]
    return _Run(data.data_ptr(), steps[0 if by_row else 2], steps[2 if by_row else 1])


WriterFactory: TypeAlias = Callable[[PagedCache, LayerTables], PageWriter | None]
"""Makes a writer, or ``None`` if it does not know a cache of that form or such a rotation."""
