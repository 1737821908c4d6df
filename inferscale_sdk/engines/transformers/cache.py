"""The model's cache object: writing segments into it, reading spans out of it, batching rows.

transformers keeps keys and values per layer as ``[row, kv_head, token, head_dim]``; a row is one
request of a batch. Segments are ``[layer, kv, token, kv_head, head_dim]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.kv.layout import SegmentLayout

__all__ = [
    "Cache",
    "GrowingLayer",
    "append",
    "keep_rows",
    "layout_of",
    "library_cache",
    "merge",
    "new_cache",
    "read",
]

Cache: TypeAlias = Any
"""transformers' ``DynamicCache``."""

_ROOM_TOKENS = 128


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values with room behind them.

    The library's own layer copies all it holds for every new token; this one copies when the room
    is used up. It never drops what has left a sliding window: the model's mask hides that, and a
    segment must hold all its tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self._room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[row, kv_head, token, head_dim]``; returns all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        keys, values = self._with_room(key_states, value_states, start, stop)
        keys[..., start:stop, :].copy_(key_states)
        values[..., start:stop, :].copy_(value_states)
        self.keys, self.values = keys[..., :stop, :], values[..., :stop, :]
        return self.keys, self.values

    def _with_room(
        self, key_states: torch.Tensor, value_states: torch.Tensor, start: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._room is not None and self._room[0].shape[-2] >= stop:
            return self._room
        capacity = stop + max(_ROOM_TOKENS, stop // 4)
        made = []
        for states, old in ((key_states, self.keys), (value_states, self.values)):
            rows, heads, _, channels = states.shape
            room = states.new_empty((rows, heads, capacity, channels))
            if start:
                room[..., :start, :].copy_(old)
            made.append(room)
        self._room = (made[0], made[1])
        return self._room


def new_cache() -> Cache:
    """An empty cache; the model adds a layer whenever it needs one."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    return cache


def library_cache(config: Any) -> Cache:
    """An empty cache as the library would make it, for a model that takes no segments.

    Args:
        config: The model's configuration object.
    """
    return DynamicCache(config=config)


def append(cache: Cache, data: torch.Tensor) -> None:
    """Write ``[layer, kv, token, kv_head, head_dim]`` behind what a cache of one row holds."""
    for layer, (keys, values) in enumerate(data):  # each [token, kv_head, head_dim]
        cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], layer)


def read(cache: Cache, start: int, stop: int) -> torch.Tensor:
    """Tokens ``start`` to ``stop`` of a cache of one row.

    Returns:
        ``[layer, kv, token, kv_head, head_dim]``, contiguous, in host memory, nobody else's.
    """
    pairs = [
        torch.stack((layer.keys[0, :, start:stop], layer.values[0, :, start:stop]))
        for layer in cache.layers
    ]  # each [kv, kv_head, token, head_dim]
    return torch.stack(pairs).transpose(2, 3).to("cpu").contiguous()


def layout_of(cache: Cache) -> SegmentLayout:
    """Shape and dtype of segments, read off a filled cache.

    Raises:
        IncompatibleModel: Layers differ, or keep something else than keys and values.
    """
    shapes = set()
    for number, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is None or getattr(layer, "values", None) is None:
            raise IncompatibleModel(f"layer {number} keeps no keys and values of single tokens")
        shapes.add((tuple(layer.keys.shape), tuple(layer.values.shape), layer.keys.dtype))
    if len(shapes) != 1:
        raise IncompatibleModel(
            f"layers differ in KV shape [row, kv_head, token, head_dim]: {sorted(map(str, shapes))}"
        )
    keys, values, dtype = shapes.pop()
    if keys != values:
        raise IncompatibleModel(f"keys are {list(keys)} but values {list(values)}")
    return SegmentLayout(len(cache.layers), n_kv_heads=keys[1], head_dim=keys[3], dtype=dtype)


def merge(caches: Sequence[Cache]) -> Cache:
    """Rows of several caches in one, padded on the left to the longest.

    Padding holds zeros; the attention mask must hide it.
    """
    length = max(cache.get_seq_length() for cache in caches)
    merged = new_cache()
    for layer in range(len(caches[0].layers)):
        keys = _padded([cache.layers[layer].keys for cache in caches], length)
        values = _padded([cache.layers[layer].values for cache in caches], length)
        merged.update(keys, values, layer)
    return merged


def _padded(parts: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Each ``[row, kv_head, token, head_dim]``; the result's tokens are ``length``."""
    first = parts[0]
    rows = sum(part.shape[0] for part in parts)
    whole = first.new_zeros((rows, first.shape[1], length, first.shape[3]))
    row = 0
    for part in parts:
        whole[row : row + part.shape[0], :, length - part.shape[2] :].copy_(part)
        row += part.shape[0]
    return whole


def keep_rows(cache: Cache, rows: Sequence[int], drop_tokens: int) -> Cache:
    """A cache of some rows only, without the first ``drop_tokens`` (padding of all of them)."""
    kept = new_cache()
    for number, layer in enumerate(cache.layers):
        index = torch.tensor(rows, device=layer.keys.device)
        kept.update(
            layer.keys[..., drop_tokens:, :].index_select(0, index),
            layer.values[..., drop_tokens:, :].index_select(0, index),
            number,
        )
    return kept
