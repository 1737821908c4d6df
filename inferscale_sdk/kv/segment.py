"""A run of tokens whose keys and values are kept as one unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from inferscale_sdk.kv.layout import DIMS, TOKEN, SegmentLayout

__all__ = ["Segment", "check_owner"]

_OWNER = re.compile(r"[0-9a-f]{1,64}")


def check_owner(owner: str) -> str:
    """The owner's tag, if it is one: empty, or up to 64 lower-case hex digits.

    Raises:
        ValueError: It is anything else.
    """
    if owner and not _OWNER.fullmatch(owner):
        raise ValueError(
            f"owner {owner[:80]!r} is not a digest of up to 64 lower-case hex digits; "
            "leave it empty for a segment of nobody's"
        )
    return owner


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Stored KV of a run of tokens. Nobody writes into ``data`` once the segment exists.

    Two segments are equal when their fields are, and their tensors hold the same bits.

    Args:
        key: Content address, see :func:`inferscale_sdk.kv.key.segment_key`.
        data: ``[layer, kv, token, kv_head, head_dim]``, contiguous, keys already rotated.
        origin: Position at which the first token's keys were rotated.
        token_digest: Digest of the token ids, see :func:`inferscale_sdk.kv.key.token_digest`.
        owner: Whose budget it counts against: an opaque digest, empty for nobody's.

    Raises:
        ValueError: ``origin`` is negative, ``data`` is not contiguous, or ``owner`` no digest.
        CorruptSegment: ``data`` does not have the dims above.
    """

    key: str
    data: torch.Tensor
    origin: int
    token_digest: str
    owner: str = ""

    def __post_init__(self) -> None:
        if self.origin < 0:
            raise ValueError(f"origin={self.origin} of segment {self.key} must not be negative")
        if not self.data.is_contiguous():
            raise ValueError(
                f"data of segment {self.key} must be contiguous in {list(DIMS)}; "
                "pass data.contiguous()"
            )
        SegmentLayout.of(self.data)
        check_owner(self.owner)

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

    @property
    def device(self) -> torch.device:
        """Where the tensor lies."""
        return self.data.device

    def take(self, start: int, stop: int) -> torch.Tensor:
        """A view of tokens ``start`` to ``stop``: ``[layer, kv, token, kv_head, head_dim]``."""
        return self.data[:, :, start:stop]

    @property
    def encode_tokens(self) -> int:
        """Tokens that must be computed to encode it again: those before it, and its own."""
        return self.origin + self.n_tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        if self._identity() != other._identity():
            return False
        # Bits, not numbers: NaN equals itself and -0.0 differs from 0.0.
        return torch.equal(self.data.view(torch.uint8), other.data.view(torch.uint8))

    def _identity(self) -> tuple[object, ...]:
        shape = (self.data.dtype, self.data.shape)
        return (self.key, self.origin, self.token_digest, self.owner, *shape)

    def __hash__(self) -> int:
        return hash((self.key, self.origin, self.token_digest))
