"""Pages written by one launch of a triton kernel, on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from inferscale_sdk.injection.paged import (
    ALIGN,
    PagedCache,
    PageWriter,
    TokenTable,
    WriterFactory,
)
from inferscale_sdk.injection.pieces import LayerTables
from inferscale_sdk.kv.layout import dtype_name
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["TritonPageWriter", "triton_writer"]

log = logging.getLogger(__name__)

_TILE = 2048  # pairs of channels that a program turns at once
_MOST_TOKENS = 16


def triton_writer() -> WriterFactory | None:
    """A writer with the kernel as triton compiles it, ``None`` without triton."""
    try:
        from inferscale_sdk.injection.triton_kernel import write_pages
    except ImportError:
        log.debug("inferscale: triton is not installed; segments are written layer by layer")
        return None
    return partial(TritonPageWriter, kernel=write_pages)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Layers that one launch serves: the same channels turn, by whichever angles."""

    layers: torch.Tensor
    """int64 ``[layer, field]``, see ``triton_kernel.LAYER_FIELDS``."""
    aligned: bool
    fixed: Mapping[str, Any]
    """What the kernel is compiled for."""


class TritonPageWriter(PageWriter):
    """One launch if the same channels turn in all layers.

    Args:
        cache: Where to; the last dim contiguous.
        tables: Rotation table per layer, on the cache's device; ``None`` for a layer without
            positions.
        kernel: :func:`~inferscale_sdk.injection.triton_kernel.write_pages`.

    Raises:
        ValueError: There is not a table for each layer, one lies on another device, or the cache
            has another form or holds numbers of another kind than the kernel knows.
    """

    def __init__(self, cache: PagedCache, tables: LayerTables, kernel: Any) -> None:
        super().__init__(cache, tables)
        from inferscale_sdk.injection.triton_kernel import ELEMENTS

        if (name := dtype_name(cache.layout.dtype)) not in ELEMENTS:
            raise ValueError(f"a cache of {name} is none of {', '.join(ELEMENTS)}")
        strides = {tensor.stride() for tensor in (cache.keys[0], cache.values[0])}
        if len(strides) != 1 or cache.keys[0].stride(3) != 1:
            raise ValueError(
                f"a cache with strides {sorted(strides)} is not one of contiguous channels, keys "
                "and values alike"
            )
        self._element = ELEMENTS[name]
        self._kernel = kernel
        # Rows of the tables are read by address.
        self._groups = [self._group(*turn, layers) for turn, layers in self._by_turn()]

    def with_tables(self, tables: LayerTables) -> Self:  # noqa: D102
        return type(self)(self._cache, tables, self._kernel)

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
            aligned=not any(n % ALIGN for n in (*addresses, *strides)),
            fixed=fixed,
        )

    def _addresses(self, layer: int, table: RotaryTable | None) -> tuple[int, int, int, int]:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        cos, sin = (0, 0) if table is None else (row.data_ptr() for row in table.rows)
        return keys.data_ptr(), values.data_ptr(), cos, sin

    def _launch(self, tokens: TokenTable) -> None:
        fields = tokens.fields.to(self._cache.device, non_blocking=True)
        for group in self._groups:
            self._launch_group(group, fields, tokens.aligned and group.aligned)

    def _launch_group(self, group: _Group, tokens: torch.Tensor, aligned: bool) -> None:
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
            ALIGN=ALIGN if aligned else self._layout.dtype.itemsize,
            **group.fixed,
            # Every operation is rounded by itself, as torch's are.
            enable_fp_fusion=False,
        )


def _power(n: int) -> int:
    """The power of two from ``n`` on; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0
