"""Rotation tables as engines keep them, and the moves between their rows.

An engine does not rotate by the exact angle of a position: it looks cosine and sine up in a table
that was computed in float32 and rounded to the model's dtype. A key moved by exact angles would
differ from the key the engine itself would have written, by the rounding of both table rows. So
keys are moved by undoing the row of the old position and applying that of the new one:
R(new)·R(old)⁻¹, which is again one scaled rotation per pair of channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferscale_sdk.rope.spec import RopeSpec

__all__ = ["RotaryTable"]


class RotaryTable:
    """Cosine and sine of every position, rounded as the engine rounds them.

    Args:
        spec: The layer's rotation.
        n_positions: Positions 0 to ``n_positions - 1``.
        rounding: Dtype the engine keeps its table in; ``None`` for exact angles (float64, kept as
            float32).
        device: Where moves are wanted.
    """

    def __init__(
        self,
        spec: RopeSpec,
        n_positions: int,
        *,
        rounding: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec = spec
        self.rounding = rounding
        positions = torch.arange(n_positions)
        frequencies = torch.from_numpy(spec.inv_freq())
        if rounding is None:
            angles = positions.double()[:, None] * frequencies
            factor = 1.0
        else:
            angles = positions.float()[:, None] * frequencies.float()
            factor = spec.attention_factor
        rows = torch.stack((angles.cos() * factor, angles.sin() * factor))
        if rounding is not None:
            rows = rows.to(rounding)
        # [cos or sin, position, rotary_dim/2]
        self._rows = rows.float().to(device).contiguous()

    @classmethod
    def from_rows(
        cls, spec: RopeSpec, rows: Tensor, *, device: torch.device | str = "cpu"
    ) -> RotaryTable:
        """A table whose rows an engine shows.

        Args:
            spec: The layer's rotation.
            rows: ``[cos or sin, position, rotary_dim/2]`` in the engine's dtype.
            device: Where moves are wanted.
        """
        table = cls(spec, 0, rounding=rows.dtype, device=device)
        table._rows = rows.float().to(device).contiguous()
        return table

    @property
    def rows(self) -> Tensor:
        """Float32 ``[cos or sin, position, rotary_dim/2]``, contiguous."""
        return self._rows

    def moves(self, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """What turns keys of positions ``old`` into keys of positions ``new``.

        Args:
            old: Positions the keys were rotated at, int64 [token].
            new: Positions they shall stand at, int64 [token].

        Returns:
            ``(cos, sin)``, each float32 ``[token, rotary_dim/2]``, for
            :func:`inferscale_sdk.rope.rotate.rotate_into`. Exactly (1, 0) where nothing moves.
        """
        old_cos, old_sin = self._rows[:, old]  # each [token, rotary_dim/2]
        new_cos, new_sin = self._rows[:, new]
        length = old_cos.square() + old_sin.square()
        cos = (new_cos * old_cos + new_sin * old_sin) / length
        sin = (new_sin * old_cos - new_cos * old_sin) / length
        still = (old == new)[:, None]
        return cos.masked_fill(still, 1.0), sin.masked_fill(still, 0.0)
