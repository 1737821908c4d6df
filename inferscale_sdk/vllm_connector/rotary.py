"""Worker half: the rotation tables that the engine itself looks positions up in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["engine_tables"]

# Some pairs are slowed and others are not; a wrong base or factor of the others changes all pairs,
# and the fast ones show it to the probe.
_SCALED_BY_PAIR = frozenset({"llama3", "yarn"})
# Of a cosine or sine: tables in bfloat16 are off by 0.004, and another rotation by up to 2.
_SAME_ROW = 0.02
# Of an angle: engines compute frequency and angle in float32, which shows in a long context (0.07
# at a million radians). A wrong base or factor is off by far more of the angle.
_ROUNDED = 3e-7


def engine_tables(
    specs: Sequence[RopeSpec | None], n_positions: int, device: torch.device
) -> tuple[RotaryTable | None, ...] | None:
    """A table per layer with the engine's own rows, down to their last bits.

    The probe sees the first few hundred positions. The tables show all of them, also how slow
    frequencies, which a wrong scaling factor changes, add up over a long context.

    Args:
        specs: Rotation per layer, ``None`` for a layer without positions.
        n_positions: The context length in tokens.
        device: Where moves are wanted.

    Returns:
        ``None`` if the engine shows no table for some layer, or none that is long enough.

    Raises:
        IncompatibleModel: The engine has tables of a layer's shape, and none turns as ``specs``
            say; or it has none, and the probe could not see the difference.
    """
    shown = list(_shown())
    made: dict[RopeSpec, RotaryTable | None] = {}
    for spec in specs:
        if spec is not None and spec not in made:
            made[spec] = _matching(spec, shown, n_positions, device)
    if any(table is None for table in made.values()):
        return None
    return tuple(None if spec is None else made[spec] for spec in specs)


def _shown() -> Iterator[tuple[bool, torch.Tensor]]:
    """Pairing and rows ``[position, rotary_dim]``, cosines first, of each of vLLM's tables."""
    try:
        from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    except ImportError:
        return
    for embedding in _ROPE_DICT.values():
        rows = getattr(embedding, "cos_sin_cache", None)
        neox = getattr(embedding, "is_neox_style", None)
        if isinstance(rows, torch.Tensor) and rows.dim() == 2 and isinstance(neox, bool):
            yield not neox, rows


def _matching(
    spec: RopeSpec,
    shown: Sequence[tuple[bool, torch.Tensor]],
    n_positions: int,
    device: torch.device,
) -> RotaryTable | None:
    candidates = [
        rows
        for interleaved, rows in shown
        if interleaved == spec.interleaved and rows.shape[1] == spec.rotary_dim
    ]
    gaps = [_gap(spec, rows[:n_positions]) for rows in candidates]
    if not candidates:
        if spec.variant in _SCALED_BY_PAIR:
            raise IncompatibleModel(
                f"the engine shows no rotary table for {spec}, and whether its slow pairs are "
                "scaled as the configuration says shows only behind the probe's positions"
            )
        return None
    best = min(range(len(candidates)), key=gaps.__getitem__)
    # Not "greater than": a NaN must fail too.
    if not gaps[best] <= _SAME_ROW:
        raise IncompatibleModel(
            f"the engine's rotary table and the one that follows from the model's configuration "
            f"({spec}) differ by {gaps[best]:.2g} within {n_positions} positions, "
            f"{_SAME_ROW} is allowed; the configuration does not describe what the engine computes"
        )
    rows = candidates[best]
    if rows.shape[0] < n_positions:
        return None
    cos, sin = rows[:n_positions].chunk(2, dim=-1)  # each [position, rotary_dim/2]
    return RotaryTable.from_rows(spec, torch.stack((cos, sin)), device=device)


def _gap(spec: RopeSpec, rows: torch.Tensor) -> float:
    """Largest deviation of a cosine or sine from the exact one, whatever the magnitude.

    Less what rounding the angle to float32 may cost.
    """
    cos, sin = rows.double().cpu().chunk(2, dim=-1)
    magnitude = (cos.square() + sin.square()).sqrt()
    positions = torch.arange(rows.shape[0], dtype=torch.float64)[:, None]
    angles = positions * torch.from_numpy(spec.inv_freq())
    rounded = _ROUNDED * angles
    gaps = (
        ((cos / magnitude - angles.cos()).abs() - rounded).max(),
        ((sin / magnitude - angles.sin()).abs() - rounded).max(),
    )
    return float(max(gaps))
