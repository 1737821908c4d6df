"""Two readings of the same tokens become one."""

from __future__ import annotations

from dataclasses import replace

import torch

from inferscale_sdk.injection.pieces import LayerTables, Piece, gather
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import Reason

__all__ = ["averaged"]


def averaged(
    segment: Segment, beside: Segment | None, tables: LayerTables, *, device: torch.device
) -> tuple[Segment, Reason]:
    """The mean of two segments of the same tokens, as ``segment``.

    What a fact's KV should be depends on what will stand before it, which nobody knows when it is
    encoded. Of all guesses the mean over contexts has the least expected squared error; the mean
    of two readings leaves half of the variance that a single one has.

    Args:
        segment: One reading.
        beside: The other, whose keys are turned to where those of ``segment`` stand; ``None`` if
            it is not there. One of another owner's is not there for this one.
        tables: Of the loaded model.
        device: Where to compute.

    Returns:
        The mean, on the CPU, computed in float32, and no reason. Or ``segment`` and why it could
        not be averaged: ``MISSING``, or ``TOKEN_MISMATCH`` where ``beside`` is of other tokens.

    Raises:
        CorruptSegment: ``beside`` does not have this model's shape.
    """
    if beside is None or beside.owner != segment.owner:
        return segment, Reason.MISSING
    if beside.token_digest != segment.token_digest:
        return segment, Reason.TOKEN_MISMATCH
    piece = Piece(beside.key, 0, beside.n_tokens, segment.origin)
    turned = gather([piece], {beside.key: beside}, segment.layout, tables, device=device)
    mean = (segment.data.to(device).float() + turned.float()) / 2
    return replace(segment, data=mean.to(segment.data.dtype).cpu()), Reason.OK
