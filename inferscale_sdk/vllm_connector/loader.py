"""Worker half: gather stored segments, rotate their keys, write them into the cache's pages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import torch

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.rotate import delta_table, rotate_into
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.vllm_connector.layers import LayerStack, slots_of
from inferscale_sdk.vllm_connector.metadata import LoadPlan, Piece

__all__ = ["Loader"]


class Loader:
    """Carries out load plans.

    The stored keys stand rotated at their segment's origin; a piece that shall stand elsewhere is
    turned by the one angle set of the difference (Chunked RoPE, Theorem 6, in its delta form).
    """

    def __init__(self, stack: LayerStack) -> None:
        self._stack = stack
        # Layers with the same rotation share one table: usually all of them do.
        self._groups: list[tuple[RopeSpec | None, list[int]]] = [
            (spec, [layer for _, layer in group])
            for spec, group in groupby(
                sorted(
                    zip(stack.specs, range(len(stack.specs)), strict=True),
                    key=lambda pair: (repr(pair[0]), pair[1]),
                ),
                key=lambda pair: pair[0],
            )
        ]

    def load(self, plan: LoadPlan, segments: Mapping[str, Segment]) -> None:
        """Write one request's pieces into its pages.

        Raises:
            KeyError: A segment is not resident.
            CorruptSegment: A segment does not have this model's shape.
        """
        data = self._gather(plan, segments)
        deltas = self._deltas(plan.pieces, segments)
        moved = bool(deltas.any())
        slots = slots_of(plan.block_ids, plan.first, plan.last, self._stack.block_size)
        slots = slots.to(self._stack.device)
        data = data.to(self._stack.device, non_blocking=True)
        for spec, layers in self._groups:
            table = delta_table(spec, deltas, device=data.device) if spec and moved else None
            for layer in layers:
                keys, values = data[layer, 0], data[layer, 1]  # each [token, kv_head, head_dim]
                if spec is not None and table is not None:
                    rotate_into(
                        keys,
                        keys,
                        *table,
                        interleaved=spec.interleaved,
                        rotary_dim=spec.rotary_dim,
                    )
                self._stack.write(layer, keys, values, slots)

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
    def _deltas(pieces: tuple[Piece, ...], segments: Mapping[str, Segment]) -> torch.Tensor:
        """How far each token moves: int64 [token]."""
        return torch.cat(
            [
                torch.full(
                    (piece.stop - piece.start,),
                    piece.position - (segments[piece.key].origin + piece.start),
                    dtype=torch.int64,
                )
                for piece in pieces
            ]
        )
