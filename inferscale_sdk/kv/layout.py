"""The one legend of KV dims: ``[layer, kv, token, kv_head, head_dim]``.

Every tensor of keys and values in this package has these dims, or says which of them it lacks.
``layer`` counts the model's attention layers from 0, ``kv`` is 0 for keys and 1 for values,
``token`` counts from the segment's first token, ``kv_head`` and ``head_dim`` are this rank's shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferscale_sdk.errors import CorruptSegment

__all__ = [
    "DIMS",
    "HEAD_DIM",
    "KEY",
    "KV",
    "KV_HEAD",
    "LAYER",
    "TOKEN",
    "VALUE",
    "SegmentLayout",
    "dtype_name",
]

DIMS = ("layer", "kv", "token", "kv_head", "head_dim")
LAYER, KV, TOKEN, KV_HEAD, HEAD_DIM = range(len(DIMS))
KEY, VALUE = 0, 1


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without the ``torch.`` prefix, e.g. ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """What all segments of one model on one rank have in common.

    Args:
        n_layers: Attention layers.
        n_kv_heads: Key/value heads per layer on this rank.
        head_dim: Channels per head.
        dtype: Dtype of keys and values at rest.

    Raises:
        ValueError: A count is not positive.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_kv_heads", "head_dim"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")

    @classmethod
    def of(cls, data: torch.Tensor) -> SegmentLayout:
        """The layout of a segment's tensor ``[layer, kv, token, kv_head, head_dim]``.

        Raises:
            CorruptSegment: The tensor does not have these dims.
        """
        if data.ndim != len(DIMS):
            raise CorruptSegment(f"a segment has dims {list(DIMS)}, got shape {list(data.shape)}")
        layer, _, _, kv_head, head_dim = data.shape
        layout = cls(layer, kv_head, head_dim, data.dtype)
        layout.check(data)
        return layout

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return self.n_layers * 2 * self.n_kv_heads * self.head_dim * self.dtype.itemsize

    def shape(self, n_tokens: int) -> tuple[int, int, int, int, int]:
        """The shape ``[layer, kv, token, kv_head, head_dim]`` of a segment of ``n_tokens``."""
        return (self.n_layers, 2, n_tokens, self.n_kv_heads, self.head_dim)

    def empty(self, n_tokens: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
        """An uninitialised tensor ``[layer, kv, token, kv_head, head_dim]``.

        Raises:
            ValueError: ``n_tokens`` is not positive.
        """
        if n_tokens < 1:
            raise ValueError(f"n_tokens={n_tokens} must be at least 1")
        return torch.empty(self.shape(n_tokens), dtype=self.dtype, device=device)

    def check(self, data: torch.Tensor) -> None:
        """Make sure that ``data`` is a segment of this layout, of any number of tokens.

        Raises:
            CorruptSegment: Shape or dtype differ. The message gives both.
        """
        n_tokens = data.shape[TOKEN] if data.ndim == len(DIMS) else 0
        if n_tokens < 1 or tuple(data.shape) != self.shape(n_tokens):
            wanted = [self.n_layers, 2, "token>=1", self.n_kv_heads, self.head_dim]
            raise CorruptSegment(
                f"the segment's shape {list(data.shape)} does not fit this model's {wanted} "
                f"({', '.join(DIMS)}); encode the segment again with the model that is loaded"
            )
        if data.dtype != self.dtype:
            raise CorruptSegment(
                f"the segment's dtype {dtype_name(data.dtype)} is not this model's "
                f"{dtype_name(self.dtype)}; encode the segment again with the model that is loaded"
            )
