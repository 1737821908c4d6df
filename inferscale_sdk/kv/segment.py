"""A run of tokens whose keys and values are kept as one unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferscale_sdk.kv.layout import DIMS, TOKEN, SegmentLayout

__all__ = ["Segment"]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Stored KV of a run of tokens. Nobody writes into ``data`` once the segment exists.

    Two segments are equal when their fields are, and their tensors hold the same bits.

    Args:
        key: Content address, see :func:`inferscale_sdk.kv.key.segment_key`.
        data: ``[layer, kv, token, kv_head, head_dim]``, contiguous, keys already rotated.
        origin: Position at which the first token's keys were rotated.
        token_digest: Digest of the token ids, see :func:`inferscale_sdk.kv.key.token_digest`.

    Raises:
        ValueError: ``origin`` is negative, or ``data`` is not contiguous.
        CorruptSegment: ``data`` does not have the dims above.
    """

    key: str
    data: torch.Tensor
    origin: int
    token_digest: str

    def __post_init__(self) -> None:
        if self.origin < 0:
            raise ValueError(f"origin={self.origin} of segment {self.key} must not be negative")
        if not self.data.is_contiguous():
            raise ValueError(
                f"data of segment {self.key} must be contiguous in {list(DIMS)}; "
                "pass data.contiguous()"
            )
        SegmentLayout.of(self.data)

    @property
    def layout(self) -> SegmentLayout:
        """What this segment has in common with all others of its model."""
        return SegmentLayout.of(self.data)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return self.data.shape[TOKEN]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.data.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        mine = (self.key, self.origin, self.token_digest, self.data.dtype, self.data.shape)
        theirs = (other.key, other.origin, other.token_digest, other.data.dtype, other.data.shape)
        if mine != theirs:
            return False
        # Bits, not numbers: NaN equals itself and -0.0 differs from 0.0.
        return torch.equal(self.data.view(torch.uint8), other.data.view(torch.uint8))

    def __hash__(self) -> int:
        return hash((self.key, self.origin, self.token_digest))
