"""Worker half: proving on the loaded model that rotation moves its keys.

One token repeated over a whole prompt makes attention average identical values, so in every layer
all positions must have the same values, and keys that differ by rotation alone. A wrong base, a
wrong pairing, a wrong scaling or a position-dependent layer shows up as a deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inferscale_sdk.protocol import ProbeVerdict
from inferscale_sdk.rope.rotate import delta_table, rotate
from inferscale_sdk.rope.spec import RopeSpec

__all__ = ["judge"]


def judge(
    data: torch.Tensor,
    specs: Sequence[RopeSpec | None],
    names: Sequence[str],
    *,
    tolerance: float,
) -> ProbeVerdict:
    """Compare what the model computed with what rotation predicts.

    Args:
        data: ``[layer, kv, token, kv_head, head_dim]`` of one token repeated from position 0.
        specs: Rotary parameters per layer.
        names: Layer names, for the message.
        tolerance: Largest deviation relative to the layer's largest key (or value).

    Returns:
        ``exact``, or ``text_only`` with the worst layer and both errors.
    """
    n_tokens = data.shape[2]
    deltas = torch.arange(n_tokens)
    key_errors, value_drifts = [], []
    for layer, spec in enumerate(specs):
        keys, values = data[layer, 0].float(), data[layer, 1].float()  # [token, kv_head, head_dim]
        expected = keys[:1].expand_as(keys)
        if spec is not None:
            cos, sin = delta_table(spec, deltas, device=data.device)
            expected = rotate(
                expected, cos, sin, interleaved=spec.interleaved, rotary_dim=spec.rotary_dim
            )
        key_errors.append(_relative(keys, expected))
        value_drifts.append(_relative(values, values[:1].expand_as(values)))
    worst = max(range(len(specs)), key=lambda i: max(key_errors[i], value_drifts[i]))
    verdict = ProbeVerdict(
        status="exact",
        n_layers=len(specs),
        max_key_error=max(key_errors),
        max_value_drift=max(value_drifts),
        worst_layer=names[worst],
    )
    # Not "greater than": a NaN must fail too.
    if verdict.max_key_error <= tolerance and verdict.max_value_drift <= tolerance:
        return verdict
    return verdict.model_copy(
        update={
            "status": "text_only",
            "reason": (
                f"layer {names[worst]}: keys deviate by {key_errors[worst]:.2g} and values by "
                f"{value_drifts[worst]:.2g} of their largest, {tolerance:.2g} is allowed; the "
                "rotary parameters in the model's configuration do not describe what it computes"
            ),
        }
    )


def _relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    scale = float(actual.abs().max())
    if scale == 0.0:
        return 0.0
    return float((actual - expected).abs().max()) / scale
