"""Worker half: write stored segments into the cache's pages."""

from __future__ import annotations

from collections.abc import Mapping

from inferscale_sdk.injection.fused import turning_kernel
from inferscale_sdk.injection.pieces import gather
from inferscale_sdk.kv.rows import Lent
from inferscale_sdk.rope.table import RotaryTable
from inferscale_sdk.vllm_connector.layers import LayerStack, slots_of
from inferscale_sdk.vllm_connector.metadata import LoadPlan
from inferscale_sdk.vllm_connector.pages import proved_writer

__all__ = ["Loader"]


class Loader:
    """Carries out load plans.

    The stored keys stand rotated at their segment's origin; a piece that shall stand elsewhere is
    turned by the difference (Chunked RoPE, Theorem 6, in its delta form). One kernel gathers, turns
    and writes all layers, where there is one that proves to do what the chain of single steps does.

    Args:
        stack: The model's layers. No request is running: what proves the kernel writes to the
            cache.
        tables: Rotation table per layer, as the engine rounds it; ``None`` for a layer without
            positions.
    """

    def __init__(self, stack: LayerStack, tables: tuple[RotaryTable | None, ...]) -> None:
        self._stack = stack
        self._tables = tables
        self._writer = proved_writer(stack, tables)
        if self._writer is None and stack.device.type == "cpu":
            turning_kernel()  # compiled now, so that no request waits for it

    @property
    def tables(self) -> tuple[RotaryTable | None, ...]:
        """Rotation table per layer."""
        return self._tables

    @tables.setter
    def tables(self, tables: tuple[RotaryTable | None, ...]) -> None:
        self._tables = tables
        if self._writer is not None:
            self._writer = self._writer.with_tables(tables)

    def load(self, plan: LoadPlan, segments: Mapping[str, Lent]) -> None:
        """Write one request's pieces into its pages.

        Raises:
            KeyError: A segment is not resident.
            CorruptSegment: A segment does not have this model's shape.
        """
        slots = slots_of(plan.block_ids, plan.first, plan.last, self._stack.block_size)
        if self._writer is not None:
            self._writer.write(plan.pieces, segments, slots)
            return
        data = gather(
            plan.pieces, segments, self._stack.layout, self._tables, device=self._stack.device
        )
        slots = slots.to(self._stack.device)
        for layer, (keys, values) in enumerate(data):  # each [token, kv_head, head_dim]
            self._stack.write(layer, keys, values, slots)
