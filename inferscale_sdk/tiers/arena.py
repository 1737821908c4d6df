"""One preallocated piece of memory for many segments."""

from __future__ import annotations

import threading

import torch

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.rows import Rows

__all__ = ["Arena"]


class Arena:
    """Slots for the keys and values of single tokens, in one tensor that is allocated once.

    A segment takes as many slots as it has tokens, wherever they are free, so memory never
    fragments: as long as ``free_tokens`` suffice, a segment fits. Safe for several threads.

    Args:
        layout: Of the segments.
        capacity_bytes: What the tensor may take; rounded down to whole tokens.
        device: Where it lies. In host memory it is pinned if there is a CUDA device, so that
            copies to the device run at full speed and beside other work.
    """

    def __init__(
        self, layout: SegmentLayout, capacity_bytes: int, device: torch.device | str = "cpu"
    ) -> None:
        self.layout = layout
        self.device = torch.device(device)
        self._capacity = capacity_bytes // layout.bytes_per_token
        pinned = self.device.type == "cpu" and torch.cuda.is_available()
        # [slot, layer, kv, kv_head, head_dim]
        self._data = torch.empty(
            (self._capacity, layout.n_layers, 2, layout.n_kv_heads, layout.head_dim),
            dtype=layout.dtype,
            device=self.device,
            pin_memory=pinned,
        )
        self._free = list(range(self._capacity - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def capacity_tokens(self) -> int:
        """How many tokens there is room for."""
        return self._capacity

    @property
    def free_tokens(self) -> int:
        """How many more tokens there is room for."""
        return len(self._free)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the tensor."""
        return self._capacity * self.layout.bytes_per_token

    def store(self, data: torch.Tensor) -> torch.Tensor:
        """Copy a segment in.

        Args:
            data: ``[layer, kv, token, kv_head, head_dim]``, anywhere.

        Returns:
            Its slots, int64 [token] in host memory, for :meth:`load`, :meth:`rows` and
            :meth:`free`.

        Raises:
            StoreFull: There are not enough free slots.
            CorruptSegment: It has another layout.
        """
        self.layout.check(data)
        n_tokens = data.shape[2]
        with self._lock:
            if n_tokens > len(self._free):
                raise StoreFull(
                    f"{n_tokens} tokens do not fit into an arena with {len(self._free)} of "
                    f"{self._capacity} slots free; raise its budget"
                )
            cut = len(self._free) - n_tokens
            taken = self._free[cut:]
            del self._free[cut:]
        slots = torch.tensor(taken, dtype=torch.int64)
        by_token = data.to(self.device).permute(2, 0, 1, 3, 4)  # [token, layer, kv, …]
        self._data.index_copy_(0, slots.to(self.device), by_token)
        return slots

    def load(self, slots: torch.Tensor) -> torch.Tensor:
        """A copy of a segment: ``[layer, kv, token, kv_head, head_dim]`` on the arena's device."""
        # [token, layer, kv, kv_head, head_dim]
        found = self._data.index_select(0, slots.to(self.device))
        return found.permute(1, 2, 0, 3, 4).contiguous()

    def rows(self, slots: torch.Tensor, origin: int) -> Rows:
        """A segment of that origin where it lies, until its slots are given back."""
        return Rows(self._data, slots.numpy(), origin)

    def free(self, slots: torch.Tensor) -> None:
        """Give slots back, once."""
        with self._lock:
            self._free += slots.tolist()
