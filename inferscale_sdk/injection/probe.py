"""Proving on the loaded model that rotation moves its keys.

One token repeated over a whole prompt makes attention average identical values, so in every layer
all positions must have the same values, and keys that differ by rotation alone. A wrong base, a
wrong pairing, a wrong scaling or a position-dependent layer shows up as a deviation. The probe
also finds out how the engine rounds its rotation tables: the candidate that fits best is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from inferscale_sdk.protocol import LayerVerdict, ProbeVerdict
from inferscale_sdk.rope.rotate import rotate
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["Judgement", "judge", "probe_token"]


def probe_token(vocab_size: int) -> int:
    """Any ordinary token will do; special tokens tend to lie at the ends of a vocabulary."""
    return min(vocab_size - 1, 1000 + vocab_size // 3)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and which of the candidate tables describes the engine best."""

    verdict: ProbeVerdict
    candidate: int


def judge(
    data: torch.Tensor,
    candidates: Sequence[Sequence[RotaryTable | None]],
    names: Sequence[str],
    *,
    tolerance: float,
    windows: Sequence[int | None] = (),
) -> Judgement:
    """Compare what the model computed with what rotation predicts.

    Args:
        data: ``[layer, kv, token, kv_head, head_dim]`` of one token repeated from position 0.
        candidates: Ways the engine may round its tables; each a table per layer, ``None`` for a
            layer without positions.
        names: Layer names, for the message.
        tolerance: Largest deviation relative to the layer's largest key (or value).
        windows: How many tokens each layer looks back, ``None`` for all; for people only.

    Returns:
        ``exact``, or ``text_only`` with the worst layer and both errors.
    """
    drifts = [_drift(layer[1]) for layer in data]
    errors = [
        [_key_error(layer[0], table) for layer, table in zip(data, tables, strict=True)]
        for tables in candidates
    ]
    best = min(range(len(candidates)), key=lambda i: max(errors[i]))
    kinds = _kinds(candidates[best], windows)
    return Judgement(_verdict(errors[best], drifts, names, kinds, tolerance), best)


def _kinds(tables: Sequence[RotaryTable | None], windows: Sequence[int | None]) -> list[str]:
    """What each layer is, for people."""
    windows = windows or [None] * len(tables)
    return [
        ("no rotary positions" if table is None else str(table.spec))
        + (f", window {window}" if window else "")
        for table, window in zip(tables, windows, strict=True)
    ]


def _verdict(
    errors: Sequence[float],
    drifts: Sequence[float],
    names: Sequence[str],
    kinds: Sequence[str],
    tolerance: float,
) -> ProbeVerdict:
    worst = max(range(len(names)), key=lambda i: max(errors[i], drifts[i]))
    # Not "greater than": a NaN must fail too.
    passed = all(value <= tolerance for value in (*errors, *drifts))
    first = next((i for i, drift in enumerate(drifts) if not drift <= tolerance), None)
    why = (
        "the rotary parameters in the model's configuration do not describe what it computes"
        if first is None
        else f"from layer {names[first]} on, the engine gives the same token other values at other "
        "places, so what it computed at one place cannot stand at another"
    )
    reason = (
        f"layer {names[worst]}: keys deviate by {errors[worst]:.2g} and values by "
        f"{drifts[worst]:.2g} of their largest, {tolerance:.2g} is allowed; {why}"
    )
    return ProbeVerdict(
        status="exact" if passed else "text_only",
        reason="" if passed else reason,
        n_layers=len(names),
        max_key_error=max(errors),
        max_value_drift=max(drifts),
        worst_layer=names[worst],
        layers=tuple(_by_kind(errors, drifts, kinds)),
    )


def _by_kind(
    errors: Sequence[float], drifts: Sequence[float], kinds: Sequence[str]
) -> Iterator[LayerVerdict]:
    for kind in dict.fromkeys(kinds):
        those = [i for i, own in enumerate(kinds) if own == kind]
        yield LayerVerdict(
            kind=kind,
            n_layers=len(those),
            key_error=max(errors[i] for i in those),
            value_drift=max(drifts[i] for i in those),
        )


def _key_error(keys: torch.Tensor, table: RotaryTable | None) -> float:
    """Keys ``[token, kv_head, head_dim]`` against the first one rotated to each position."""
    expected = keys[:1].expand_as(keys)
    if table is not None:
        new = torch.arange(keys.shape[0], device=keys.device)
        cos, sin = table.moves(torch.zeros_like(new), new)
        expected = rotate(
            expected.float(),
            cos,
            sin,
            interleaved=table.spec.interleaved,
            rotary_dim=table.spec.rotary_dim,
        )
    return _relative(keys, expected)


def _drift(values: torch.Tensor) -> float:
    """Values ``[token, kv_head, head_dim]`` against those of the first position."""
    return _relative(values, values[:1].expand_as(values))


def _relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    scale = float(actual.float().abs().max())
    if scale == 0.0:
        return 0.0
    return float((actual.float() - expected.float()).abs().max()) / scale
