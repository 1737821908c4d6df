"""The paper's own form: keys taken before rotation (Chunked RoPE, Theorem 6).

Segments keep keys as the model wrote them and move them by the difference of positions. Taking keys
before rotation and rotating them once, where they shall stand, must come to the same; where a model
lets us see them, that is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inferscale_sdk.engines.transformers.cache import Cache, layout_of
from inferscale_sdk.engines.transformers.loading import LoadedModel
from inferscale_sdk.engines.transformers.runner import Runner
from inferscale_sdk.rope.rotate import rotate
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["prefill_unrotated", "rotated_at"]


def prefill_unrotated(
    model: LoadedModel, runner: Runner, cache: Cache, token_ids: Sequence[int]
) -> torch.Tensor | None:
    """Compute tokens behind what a cache of one row holds, and watch their keys.

    Args:
        model: The model.
        runner: Its forward passes.
        cache: Takes the keys and values as the model writes them.
        token_ids: What to compute.

    Returns:
        Keys before rotation ``[layer, token, kv_head, head_dim]``, or ``None`` for a model that
        does not let us see them: one without separate key projections.
    """
    with _outputs_of_key_projections(model.module) as seen:
        runner.prefill(cache, token_ids)
    layout = layout_of(cache)
    wanted = (len(token_ids), layout.n_kv_heads, layout.head_dim)
    keys = [_by_token(seen[number], wanted) for number in sorted(seen)]
    known = [each for each in keys if each is not None]
    return torch.stack(known) if len(known) == layout.n_layers else None


def rotated_at(
    keys: torch.Tensor, table: RotaryTable | None, positions: torch.Tensor
) -> torch.Tensor:
    """Rotate keys that have no position yet.

    Args:
        keys: ``[token, kv_head, head_dim]`` before rotation.
        table: The layer's table, ``None`` for a layer without positions.
        positions: Where the tokens shall stand, int64 [token].

    Returns:
        float32 ``[token, kv_head, head_dim]``.
    """
    keys = keys.float()
    if table is None:
        return keys
    spec = table.spec
    # Keys at position 0 are turned by nothing, but already have YaRN's magnitude.
    at_zero = keys.clone()
    at_zero[..., : spec.rotary_dim] *= spec.attention_factor
    cos, sin = table.moves(torch.zeros_like(positions), positions)
    return rotate(at_zero, cos, sin, interleaved=spec.interleaved, rotary_dim=spec.rotary_dim)


@contextmanager
def _outputs_of_key_projections(module: Any) -> Iterator[dict[int, torch.Tensor]]:
    """Fills a dictionary, layer number to output of row 0, in every forward pass."""
    seen: dict[int, torch.Tensor] = {}
    handles = []
    for layer in module.modules():
        # A norm of the keys comes after their projection and before rotation.
        last = getattr(layer, "k_norm", None) or getattr(layer, "k_proj", None)
        number = getattr(layer, "layer_idx", None)
        if last is None or number is None:
            continue

        def note(_: Any, __: Any, output: torch.Tensor, number: int = number) -> None:
            seen[number] = output.detach()[0]

        handles.append(last.register_forward_hook(note))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _by_token(output: torch.Tensor, wanted: tuple[int, int, int]) -> torch.Tensor | None:
    """A projection's or norm's output as ``[token, kv_head, head_dim]``.

    Models split heads before or after their norm, and put tokens first or heads; ``None`` if the
    output is none of that.
    """
    token, kv_head, head_dim = wanted
    if tuple(output.shape) == (kv_head, token, head_dim):
        return output.transpose(0, 1)
    if output.shape[0] != token or output.numel() != token * kv_head * head_dim:
        return None
    return output.reshape(wanted)
