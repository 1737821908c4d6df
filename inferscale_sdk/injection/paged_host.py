"""Pages written in one pass over memory, on a CPU.

vLLM's attention on a CPU keeps keys by channel: the slots of a page lie side by side. So keys are
turned and transposed in registers, eight tokens by eight channels. One thread does it, as in
:mod:`inferscale_sdk.injection.fused` and for the same reason.

numba compiles it; vLLM depends on numba.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import Self

import numpy as np
import torch

from inferscale_sdk.injection.paged import PagedCache, PageWriter, TokenTable, WriterFactory
from inferscale_sdk.injection.pieces import LayerTables, one_thread

__all__ = ["HostPageWriter", "host_writer"]

log = logging.getLogger(__name__)


def host_writer() -> WriterFactory | None:
    """A writer for caches in host memory, ``None`` without numba."""
    try:
        import numba  # noqa: F401
    except ImportError:
        log.debug("inferscale: numba is not installed; segments are written layer by layer")
        return None
    return _for_known_forms


def _for_known_forms(cache: PagedCache, tables: LayerTables) -> HostPageWriter | None:
    if why := _unsuited(cache, tables):
        log.info("inferscale: segments are written layer by layer: %s", why)
        return None
    return HostPageWriter(cache, tables)


def _unsuited(cache: PagedCache, tables: LayerTables) -> str:
    """What the kernel does not know about a cache or a rotation; empty if it knows all."""
    from inferscale_sdk.injection.simd import LANES

    keys, values = cache.keys[0], cache.values[0]
    if keys.dtype not in (torch.bfloat16, torch.float32):
        return f"{keys.dtype}"
    if keys.stride(1) != 1 or values.stride(3) != 1:
        return f"keys with strides {keys.stride()}, values with strides {values.stride()}"
    if keys.shape[3] % LANES:
        return f"{keys.shape[3]} channels"
    shown = [table for table in tables if table is not None]
    if any(table.spec.interleaved for table in shown):
        return "interleaved channels"
    if uneven := [half for table in shown if (half := table.spec.rotary_dim // 2) % LANES]:
        return f"{uneven[0]} pairs of channels that turn"
    return ""


class HostPageWriter(PageWriter):
    """One pass for all layers of one rotation. Used by one thread.

    Args:
        cache: Where to, in host memory: keys by channel, values by token.
        tables: Rotation table per layer, not interleaved; ``None`` for a layer without positions.

    Raises:
        ValueError: There is not a table for each layer, or the kernel does not know the cache's
            form or the rotation.
    """

    def __init__(self, cache: PagedCache, tables: LayerTables) -> None:
        super().__init__(cache, tables)
        from inferscale_sdk.injection.host_kernel import write_columns

        if why := _unsuited(cache, tables):
            raise ValueError(f"no kernel for {why}")
        self._kernel = write_columns
        bits = np.uint16 if self._layout.dtype is torch.bfloat16 else np.float32
        self._like = np.empty(0, bits)
        self._bases = [
            np.array([tensor.data_ptr() for tensor in tensors], np.int64)
            for tensors in (cache.keys, cache.values)
        ]

    def with_tables(self, tables: LayerTables) -> Self:  # noqa: D102
        return type(self)(self._cache, tables)

    def _launch(self, tokens: TokenTable) -> None:
        with one_thread(self._cache.device):
            self._write(tokens)

    def _write(self, tokens: TokenTable) -> None:
        source, plane, slot, old, new = tokens.fields.numpy()
        size = self._layout.dtype.itemsize
        page, offset = np.divmod(slot, self._cache.keys[0].shape[1])
        places, heads = [], []
        for tensor in (self._cache.keys[0], self._cache.values[0]):
            places.append(page * (tensor.stride(0) * size) + offset * (tensor.stride(1) * size))
            heads.append(tensor.stride(2) * size)
        # Where slots no longer lie side by side.
        breaks = np.flatnonzero(np.diff(places[0]) != size) + 1
        runs = np.concatenate(([0], breaks, [len(slot)]))
        start = 0
        for table, same in groupby(self._tables):
            stop = start + len(list(same))
            angles = np.empty((2, 0, 0), np.float32) if table is None else table.rows.numpy()
            self._kernel(
                self._like,
                source,
                plane,
                *places,
                runs,
                angles,
                old,
                new,
                *np.empty((2, len(slot), angles.shape[2]), np.float32),
                np.arange(start, stop),
                *self._bases,
                self._layout.n_kv_heads,
                self._layout.head_dim,
                *heads,
                self._cache.keys[0].stride(3) * size,
            )
            start = stop
