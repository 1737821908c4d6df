"""Worker half: write stored segments into the cache's pages."""

from __future__ import annotations

from collections.abc import Mapping

from inferscale_sdk.injection.fused import turning_kernel
from inferscale_sdk.injection.pieces import gather
from inferscale_sdk.kv.segment import Segment
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
        if stack.device.type == "cpu":
            turning_kernel()  # compiled now, so that no request waits for it

    def load(self, plan: LoadPlan, segments: Mapping[str, Segment]) -> None:
        """Write one request's pieces into its pages.

        Raises:
            KeyError: A segment is not resident.
            CorruptSegment: A segment does not have this model's shape.
        """
        data = gather(
            plan.pieces, segments, self._stack.layout, self.tables, device=self._stack.device
        )
        slots = slots_of(plan.block_ids, plan.first, plan.last, self._stack.block_size)
        slots = slots.to(self._stack.device)
        for layer, (keys, values) in enumerate(data):  # each [token, kv_head, head_dim]
            self._stack.write(layer, keys, values, slots)
