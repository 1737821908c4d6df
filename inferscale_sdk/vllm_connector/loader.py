"""Worker half: gather stored segments, rotate their keys, write them into the cache's pages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import torch

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.rotate import rotate_into
from inferscale_sdk.rope.table import RotaryTable
from inferscale_sdk.vllm_connector.layers import LayerStack, slots_of
from inferscale_sdk.vllm_connector.metadata import LoadPlan

__all__ = ["Loader"]


class Loader:
    """Carries out load plans.

    The stored keys stand rotated at their segment's origin; a piece that shall stand elsewhere is
    turned by the difference (Chunked RoPE, Theorem 6, in its delta form).

    Args:
        stack: The model's layers.
        tables: Rotation table per layer, as the engine rounds it; ``None`` for a layer without
            positions.
    """

    def __init__(self, stack: LayerStack, tables: tuple[RotaryTable | None, ...]) -> None:
        self._stack = stack
        self.tables = tables

    def load(self, plan: LoadPlan, segments: Mapping[str, Segment]) -> None:
        """Write one request's pieces into its pages.

        Raises:
            KeyError: A segment is not resident.
            CorruptSegment: A segment does not have this model's shape.
        """
        device = self._stack.device
        data = self._gather(plan, segments).to(device, non_blocking=True)
        old = self._origins(plan, segments).to(device)  # [token]
        new = torch.arange(plan.first, plan.last, device=device)
        slots = slots_of(plan.block_ids, plan.first, plan.last, self._stack.block_size).to(device)
        if not torch.equal(old, new):
            self._rotate(data[:, 0], old, new)
        for layer, (keys, values) in enumerate(data):  # each [token, kv_head, head_dim]
            self._stack.write(layer, keys, values, slots)

    def _rotate(self, keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Turn keys ``[layer, token, kv_head, head_dim]`` in place, layers of one table at once."""
        start = 0
        for table, same in groupby(self.tables):
            stop = start + len(list(same))
            if table is not None:
                cos, sin = table.moves(old, new)
                rotate_into(
                    keys[start:stop],
                    keys[start:stop],
                    cos,
                    sin,
                    interleaved=table.spec.interleaved,
                    rotary_dim=table.spec.rotary_dim,
                )
            start = stop

    def _gather(self, plan: LoadPlan, segments: Mapping[str, Segment]) -> torch.Tensor:
        """The pieces side by side: ``[layer, kv, token, kv_head, head_dim]``."""
        data = self._stack.layout.empty(plan.last - plan.first)
        for piece in plan.pieces:
            segment = segments[piece.key]
            self._stack.layout.check(segment.data)
            at = piece.position - plan.first
            target = data[:, :, at : at + piece.stop - piece.start]
            target.copy_(segment.data[:, :, piece.start : piece.stop])
        return data

    @staticmethod
    def _origins(plan: LoadPlan, segments: Mapping[str, Segment]) -> torch.Tensor:
        """The position each token's key was rotated at: int64 [token]."""
        parts = []
        for piece in plan.pieces:
            origin = segments[piece.key].origin
            parts.append(torch.arange(origin + piece.start, origin + piece.stop))
        return torch.cat(parts)
