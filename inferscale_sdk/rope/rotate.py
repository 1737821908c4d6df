"""Moving keys to another position by rotating them. Pure functions on tensors.

A key of position o is R(o)·k, its copy at position p is R(p)·k = R(p - o)·R(o)·k. So a stored key
moves by one rotation with the angles of the difference p - o, whatever it was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from inferscale_sdk.rope.spec import RopeSpec

__all__ = ["delta_table", "rotate", "rotate_into"]


def delta_table(
    spec: RopeSpec,
    deltas: Sequence[int] | Tensor,
    *,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles that move each token by its delta.

    Angles are computed in float64, because a float32 angle of 100,000 radians has lost its last
    seven bits. YaRN's magnitude is not applied: it is already in the stored keys.

    Args:
        spec: The layer's rotation.
        deltas: ``[token]`` integers, new position minus the one the key was rotated at.
        device: Where the table shall lie; that of ``deltas`` by default.

    Returns:
        ``(cos, sin)``, each float32 ``[token, rotary_dim/2]``.
    """
    moves = torch.as_tensor(deltas, dtype=torch.int64)
    target = torch.device(device) if device is not None else moves.device
    # A request moves a handful of segments: few deltas are distinct, and trigonometry is dear.
    distinct, which = torch.unique(moves.cpu(), return_inverse=True)
    frequencies = torch.from_numpy(spec.inv_freq())
    angles = distinct.to(torch.float64)[:, None] * frequencies  # [distinct, rotary_dim/2]
    cos, sin = angles.cos().float(), angles.sin().float()
    return cos[which].to(target), sin[which].to(target)


def rotate(keys: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, rotary_dim: int) -> Tensor:
    """Rotate keys into a new tensor; see :func:`rotate_into`."""
    return rotate_into(
        torch.empty_like(keys, memory_format=torch.contiguous_format),
        keys,
        cos,
        sin,
        interleaved=interleaved,
        rotary_dim=rotary_dim,
    )


@torch.no_grad()
def rotate_into(
    out: Tensor,
    keys: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool,
    rotary_dim: int,
) -> Tensor:
    """Rotate keys, writing into ``out``.

    Computes in float32 and rounds once to the dtype of ``out``. Tokens whose delta is 0 keep their
    bits, and so do channels from ``rotary_dim`` on. One call for all layers that share a rotation
    is twice as fast as a call per layer, and on a GPU waits for the device once instead of for
    each.

    Args:
        out: ``[..., token, kv_head, head_dim]``, any strides. May be ``keys`` itself; must not
            overlap it in another way.
        keys: ``[..., token, kv_head, head_dim]``, any float dtype, any strides.
        cos: float32 ``[token, rotary_dim/2]``.
        sin: float32 ``[token, rotary_dim/2]``.
        interleaved: Pairs are channels (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.
        rotary_dim: Leading channels that rotate.

    Returns:
        ``out``.

    Raises:
        ValueError: The shapes do not fit together.
    """
    _check(out, keys, cos, sin, rotary_dim)
    token, kv_head, _ = keys.shape[-3:]
    # Tables as wide as a layer and scratch that is used again for each: plain loops over memory
    # that stays in the processor's cache, eight times faster than broadcasting into new tensors.
    cos_wide = cos[:, None, :].expand(token, kv_head, -1).contiguous()
    sin_wide = sin[:, None, :].expand(token, kv_head, -1).contiguous()
    # -0.0 * 1 - y * 0 may be +0.0, so tokens that stay are copied.
    still = ((sin == 0) & (cos == 1)).all(dim=1).nonzero().flatten()
    first, second = _pairs(rotary_dim, interleaved)
    original, turned = torch.empty(
        (2, token, kv_head, rotary_dim), dtype=torch.float32, device=keys.device
    ).unbind(0)
    for out_layer, keys_layer in _layers(out, keys):
        kept = keys_layer[still]  # a copy: the layer may be overwritten
        original.copy_(keys_layer[..., :rotary_dim])
        x, y = original[..., first], original[..., second]  # [token, kv_head, rotary_dim/2]
        torch.mul(x, cos_wide, out=turned[..., first]).addcmul_(y, sin_wide, value=-1)
        torch.mul(y, cos_wide, out=turned[..., second]).addcmul_(x, sin_wide)
        out_layer[..., :rotary_dim].copy_(turned)
        if out_layer.data_ptr() != keys_layer.data_ptr():
            out_layer[..., rotary_dim:].copy_(keys_layer[..., rotary_dim:])
        if still.numel():
            out_layer[still] = kept.to(out.dtype)
    return out


def _pairs(rotary_dim: int, interleaved: bool) -> tuple[slice, slice]:
    """First and second channels of all pairs."""
    if interleaved:
        return slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    return slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)


def _layers(out: Tensor, keys: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both tensors cut into ``[token, kv_head, head_dim]``."""
    if keys.ndim == 3:
        yield out, keys
        return
    for out_part, keys_part in zip(out.unbind(0), keys.unbind(0), strict=True):
        yield from _layers(out_part, keys_part)


def _check(out: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int) -> None:
    if keys.ndim < 3 or out.shape != keys.shape:
        raise ValueError(
            f"keys {list(keys.shape)} and out {list(out.shape)} must both be "
            "[..., token, kv_head, head_dim]"
        )
    token, _, head_dim = keys.shape[-3:]
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim={rotary_dim} must be even and at most head_dim={head_dim}")
    wanted = (token, rotary_dim // 2)
    if tuple(cos.shape) != wanted or tuple(sin.shape) != wanted:
        raise ValueError(
            f"cos {list(cos.shape)} and sin {list(sin.shape)} must be [token, rotary_dim/2] = "
            f"{list(wanted)}"
        )
