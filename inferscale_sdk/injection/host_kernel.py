"""Kernels for a CPU: turning keys, and writing pages. Imports numba: import it late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import overload

from inferscale_sdk.injection.simd import LANES, fma, pointer, transpose

__all__ = ["turn_keys", "write_columns"]


def _kept(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, which takes seconds, and kept in a file for the next process."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither beside this file nor in the user's cache
        return njit(nogil=True)(function)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _turn_heads(row: Any, head_dim: int, cos: Any, sin: Any) -> None:
    # row: float32, one token's keys
    half = len(cos)
    for start in range(0, len(row), head_dim):
        first = row[start : start + half]
        second = row[start + half : start + 2 * half]
        for i in range(half):
            x = first[i]
            y = second[i]
            first[i] = fma(-y, sin[i], x * cos[i])
            second[i] = fma(x, sin[i], y * cos[i])


def _turn(stored: Any, row: Any, head_dim: int, cos: Any, sin: Any, real: Any) -> None:
    """Turn one token's keys into ``row``; ``real`` is float32 and as long."""
    raise NotImplementedError("only compiled")


@overload(_turn)  # type: ignore[untyped-decorator]
def _turn_of(
    _stored: Any, row: Any, _head_dim: Any, _cos: Any, _sin: Any, _real: Any
) -> Callable[..., None]:
    def float32(_stored: Any, row: Any, _head_dim: Any, _cos: Any, _sin: Any, _real: Any) -> None:
        for i in range(len(row)):
            row[i] = _stored[i]
        _turn_heads(row, _head_dim, _cos, _sin)

    def bfloat16(_stored: Any, row: Any, _head_dim: Any, _cos: Any, _sin: Any, _real: Any) -> None:
        bits = _real.view(np.uint32)
        for i in range(len(row)):
            bits[i] = np.uint32(_stored[i]) << np.uint32(16)
        _turn_heads(_real, _head_dim, _cos, _sin)
        for i in range(len(row)):
            odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
            row[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return bfloat16 if row.dtype is types.uint16 else float32


def _turn_keys(data: Any, cos: Any, sin: Any, moved: Any, head_dim: int, real: Any) -> None:
    for layer in range(data.shape[0]):
        for m in range(len(moved)):
            keys = data[layer, 0, moved[m]]
            _turn(keys, keys, head_dim, cos[moved[m]], sin[moved[m]], real)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _read_row(
    row: Any, begin: int, plane: int, moved: Any, cos: Any, sin: Any, real: Any,
    target: int, head_dim: int, head_step: int,
) -> None:  # fmt: skip
    # One token of a layer: its keys, turned, into row; its values to their place.
    width = len(row)
    stored = carray(pointer(row, begin), (width,))
    if moved:
        _turn(stored, row, head_dim, cos, sin, real)
    else:
        for i in range(width):
            row[i] = stored[i]
    stored = carray(pointer(row, begin + plane), (width,))
    for head in range(width // head_dim):
        placed = carray(pointer(row, target + head * head_step), (head_dim,))
        part = stored[head * head_dim : (head + 1) * head_dim]
        for i in range(head_dim):
            placed[i] = part[i]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_run(
    rows: Any, start: int, run: int, channel: int, head_dim: int, target: int, step: int
) -> None:
    # Tokens whose slots lie side by side: from channel on, head_dim columns of rows
    # [token, channel] become rows, step bytes apart.
    size = rows.itemsize
    width = rows.shape[1] * size
    source = rows.ctypes.data + start * width + channel * size
    for i in range(0, head_dim, LANES):
        begin = source + i * size
        end = target + i * step
        if run >= LANES:
            t = 0
            while t < run:
                t = min(t, run - LANES)  # the last ones may be written twice
                transpose(rows, begin + t * width, width, end + t * size, step)
                t += LANES
        else:
            for j in range(LANES):
                column = carray(pointer(rows, end + j * step), (run,))
                for t in range(run):
                    column[t] = rows[start + t, channel + i + j]


def _write_columns(
    source: Any, plane: Any, key_at: Any, value_at: Any, moved: Any, cos: Any, sin: Any,
    layers: Any, keys: Any, values: Any, rows: Any, head_dim: int,
    key_head: int, value_head: int, key_channel: int,
) -> None:  # fmt: skip
    n_tokens = len(source)
    tile, width = rows.shape
    real = np.empty(width, np.float32)
    for layer in layers:
        for first in range(0, n_tokens, tile):
            count = min(tile, n_tokens - first)
            for u in range(count):
                t = first + u
                begin = source[t] + 2 * layer * plane[t]
                target = values[layer] + value_at[t]
                _read_row(
                    rows[u], begin, plane[t], moved[t], cos[t], sin[t], real,
                    target, head_dim, value_head,
                )  # fmt: skip
            start = 0
            while start < count:
                begin = key_at[first + start]
                run = 1
                while (
                    start + run < count
                    and key_at[first + start + run] == begin + run * rows.itemsize
                ):
                    run += 1
                for head in range(width // head_dim):
                    target = keys[layer] + begin + head * key_head
                    _write_run(rows, start, run, head * head_dim, head_dim, target, key_channel)
                start += run


turn_keys: Callable[..., None] = _kept(_turn_keys)
"""Turn keys where they lie. Arguments:

- ``data``: bits of bfloat16, uint16 [layer, kv, token, kv_head * head_dim];
- ``cos``, ``sin``: float32 [token, rotary_dim/2];
- ``moved``: int64, which tokens;
- ``head_dim``; ``real``: room for one token's keys in float32.
"""

write_columns: Callable[..., None] = _kept(_write_columns)
"""Turn keys and write them and their values into pages.

Addresses, places and steps are in bytes. Its arguments:

- ``source``, ``plane``: int64 [token], address of a token's keys in the first layer, and bytes from
  its keys to its values;
- ``key_at``, ``value_at``: int64 [token], where a token goes within a layer's cache;
- ``moved``: bool [token], whether its keys are turned;
- ``cos``, ``sin``: float32 [token, rotary_dim/2];
- ``layers``: int64 [layer], which ones;
- ``keys``, ``values``: int64 by layer, addresses of the caches;
- ``rows``: room for as many tokens as are turned before they are written, [token, channel]:
  float32, or uint16 for the bits of bfloat16;
- ``head_dim``;
- ``key_head``, ``value_head``: from head to head; ``key_channel``: from channel to channel.
"""
