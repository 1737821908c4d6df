"""Kernels for a CPU: turning keys, and writing pages. Imports numba: import it late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit

from inferscale_sdk.injection.simd import (
    LANES,
    LINE,
    copy_line,
    fma,
    pointer,
    prefetch,
    prefetch_to_write,
    transpose,
    turn_and_transpose,
)

__all__ = ["turn_keys", "write_columns"]


_AHEAD = 10  # so many rows are asked for before they are copied


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


def _turn_keys(data: Any, cos: Any, sin: Any, moved: Any, head_dim: int, real: Any) -> None:
    bits = real.view(np.uint32)
    for layer in range(data.shape[0]):
        for t in moved:
            keys = data[layer, 0, t]
            for i in range(len(keys)):
                bits[i] = np.uint32(keys[i]) << np.uint32(16)
            _turn_heads(real, head_dim, cos[t], sin[t])
            for i in range(len(keys)):
                odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
                keys[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _address(array: Any) -> Any:
    # Signed: an unsigned number and a signed one make a float.
    return np.int64(array.ctypes.data)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_keys(
    like: Any, rows: Any, cos: Any, sin: Any, moved: Any, half: int, target: int,
    n_heads: int, head_dim: int, head_step: int, channel_step: int,
) -> None:  # fmt: skip
    # At least LANES tokens whose slots lie side by side. Their channels become rows.
    n, size = len(rows), like.itemsize
    rows_at, moved_at = _address(rows), _address(moved)
    cos_at, sin_at = _address(cos), _address(sin)
    for head in range(n_heads):
        for channel in range(0, head_dim, LANES):
            if half <= channel < 2 * half:  # turned together with the first half
                continue
            offset = (head * head_dim + channel) * size
            placed = target + head * head_step + channel * channel_step
            t = 0
            while t < n:
                t = min(t, n - LANES)  # the last ones may be written twice
                if t * size % LINE == 0:
                    ahead = placed + t * size + LANES * channel_step
                    for i in range(LANES):
                        prefetch_to_write(ahead + i * channel_step)
                        prefetch_to_write(ahead + (half + i) * channel_step)
                if channel < half:
                    turn_and_transpose(
                        like, rows_at + t * 8, offset, placed + t * size, channel_step,
                        half, cos_at + t * 8, sin_at + t * 8, channel * 4, moved_at + t,
                    )  # fmt: skip
                else:
                    transpose(like, rows_at + t * 8, offset, placed + t * size, channel_step)
                t += LANES


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_run(
    like: Any, rows: Any, cos: Any, sin: Any, moved: Any, half: int, target: int,
    n_heads: int, head_dim: int, head_step: int, channel_step: int,
) -> None:  # fmt: skip
    # Any number of such tokens. Few are written elsewhere first, the last one repeated.
    n = len(rows)
    if n >= LANES:
        _write_keys(
            like, rows, cos, sin, moved, half, target,
            n_heads, head_dim, head_step, channel_step,
        )  # fmt: skip
        return
    last = np.minimum(np.arange(LANES), n - 1)
    channels = np.empty((n_heads, head_dim, LANES), like.dtype)
    _write_keys(
        like, rows[last], cos[last], sin[last], moved[last], half, _address(channels),
        n_heads, head_dim, channels.strides[0], channels.strides[1],
    )  # fmt: skip
    for head in range(n_heads):
        for channel in range(head_dim):
            at = target + head * head_step + channel * channel_step
            carray(pointer(like, at), (n,))[:] = channels[head, channel, :n]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_values(
    like: Any, source: int, target: int, n_heads: int, head_dim: int, head_step: int
) -> None:
    nbytes = head_dim * like.itemsize
    for head in range(n_heads):
        begin, end = source + head * nbytes, target + head * head_step
        for i in range(0, nbytes - LINE + 1, LINE):
            copy_line(begin + i, end + i)
        rest = nbytes % LINE
        if rest:
            done = nbytes - rest
            n = rest // like.itemsize
            stored = carray(pointer(like, begin + done), (n,))
            carray(pointer(like, end + done), (n,))[:] = stored


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _prefetch_row(row: int, nbytes: int) -> None:
    for i in range(0, nbytes, LINE):
        prefetch(row + i)


@njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _moves(angles: Any, old: Any, new: Any, cos: Any, sin: Any) -> Any:
    # To the bit as RotaryTable.moves and moved_tokens have it. Returns which tokens are turned; of
    # the others cos and sin are left as they are.
    moved = np.zeros(len(old), np.bool_)
    for t in range(len(old)):
        if old[t] == new[t]:
            continue
        old_cos, old_sin = angles[0, old[t]], angles[1, old[t]]
        new_cos, new_sin = angles[0, new[t]], angles[1, new[t]]
        for i in range(angles.shape[2]):
            length = old_cos[i] * old_cos[i] + old_sin[i] * old_sin[i]
            cos[t, i] = (new_cos[i] * old_cos[i] + new_sin[i] * old_sin[i]) / length
            sin[t, i] = (new_sin[i] * old_cos[i] - new_cos[i] * old_sin[i]) / length
        for i in range(angles.shape[2]):
            if sin[t, i] != 0 or cos[t, i] != 1:
                moved[t] = True
                break
    return moved


def _write_columns(
    like: Any, source: Any, plane: Any, key_at: Any, value_at: Any, runs: Any,
    angles: Any, old: Any, new: Any, cos: Any, sin: Any, layers: Any, keys: Any, values: Any,
    n_heads: int, head_dim: int, key_head: int, value_head: int, key_channel: int,
) -> None:  # fmt: skip
    half = angles.shape[2]
    moved = _moves(angles, old, new, cos, sin)
    # The arrays of these addresses are the caller's: numba frees its own after their last use.
    row_bytes = n_heads * head_dim * like.itemsize
    cos_at = _address(cos) + np.arange(len(cos)) * cos.strides[0]
    sin_at = _address(sin) + np.arange(len(sin)) * sin.strides[0]
    for layer in layers:
        rows = source + 2 * layer * plane
        for i in range(len(runs) - 1):
            first, last = runs[i], runs[i + 1]
            # Segments are too short for a processor to foresee what is read next.
            for t in range(first, last):
                _prefetch_row(rows[t], row_bytes)
            target = keys[layer] + key_at[first]
            _write_run(
                like, rows[first:last], cos_at[first:last], sin_at[first:last], moved[first:last],
                half, target, n_heads, head_dim, key_head, key_channel,
            )  # fmt: skip
            for t in range(first, last):
                ahead = min(t + _AHEAD, last - 1)
                _prefetch_row(rows[ahead] + plane[ahead], row_bytes)
                _write_values(
                    like, rows[t] + plane[t], values[layer] + value_at[t],
                    n_heads, head_dim, value_head,
                )  # fmt: skip


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

- ``like``: an array of what the cache holds: float32, or uint16 for the bits of bfloat16;
- ``source``, ``plane``: int64 [token], address of a token's keys in the first layer, and bytes from
  its keys to its values;
- ``key_at``, ``value_at``: int64 [token], where a token goes within a layer's cache;
- ``runs``: int64, the first token of each run of slots that lie side by side, and at the end the
  number of tokens;
- ``angles``: the rows of a :class:`~inferscale_sdk.rope.table.RotaryTable`, float32
  [cos or sin, position, rotary_dim/2], the latter a multiple of :data:`LANES`, or 0 for layers
  without positions;
- ``old``, ``new``: int64 [token], the positions its keys were rotated at and shall be;
- ``cos``, ``sin``: float32 [token, rotary_dim/2], room for what turns each token's keys;
- ``layers``: int64 [layer], which ones;
- ``keys``, ``values``: int64 by layer, addresses of the caches;
- ``n_heads``; ``head_dim``, a multiple of :data:`LANES`;
- ``key_head``, ``value_head``: from head to head; ``key_channel``: from channel to channel.
"""
