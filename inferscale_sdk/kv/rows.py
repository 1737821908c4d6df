"""A segment where it lies, when that is in rows of a larger tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inferscale_sdk.kv.segment import Segment

__all__ = ["Lent", "Rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One segment's tokens in a tensor that others share.

    They are lent: they hold this segment only for as long as the lender says.

    Args:
        data: ``[slot, layer, kv, kv_head, head_dim]``, contiguous.
        slots: Where the tokens lie, int64 [token].
        origin: Position at which the first token's keys were rotated.
    """

    data: torch.Tensor
    slots: NDArray[np.int64]
    origin: int

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.data.device

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        """Bytes of this segment's tokens."""
        return self.n_tokens * self.data[0].nbytes

    def take(self, start: int, stop: int) -> torch.Tensor:
        """A copy of tokens ``start`` to ``stop``: ``[layer, kv, token, kv_head, head_dim]``."""
        slots = torch.from_numpy(self.slots[start:stop]).to(self.device)
        return self.data.index_select(0, slots).permute(1, 2, 0, 3, 4)


Lent = Segment | Rows
"""A segment to read, in memory of its own or among others."""
