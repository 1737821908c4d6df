"""Turning the keys of many layers in one pass over memory, on a CPU.

:func:`~inferscale_sdk.rope.rotate.rotate_into` is a chain of whole-tensor operations, each of which
wakes the other threads; next to a busy client that costs more than the arithmetic. Here one thread
reads each key once, turns it in registers and writes it back: a third of the time on one core, and
none of it waiting. The bits are those of ``rotate_into``: float32, fused multiply-add, rounded
once.

numba compiles it; vLLM depends on numba. Without numba, or where the bits differ after all, there
is no kernel and the chain of operations is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch

from inferscale_sdk.rope.rotate import rotate_into

__all__ = ["Kernel", "fits", "moved_tokens", "turning_kernel"]

log = logging.getLogger(__name__)

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Turns the keys of ``[layer, kv, token, kv_head, head_dim]`` in place, by cosines and sines, each
float32 ``[token, rotary_dim/2]``."""


def fits(data: torch.Tensor, *, interleaved: bool) -> bool:
    """Whether the kernel can turn the keys of ``data``."""
    plain = data.device.type == "cpu" and data.dtype is torch.bfloat16
    return plain and not interleaved and data.is_contiguous()


def moved_tokens(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Which tokens are turned at all: bool [token].

    The others keep their bits: -0.0 * 1 - y * 0 may be +0.0.
    """
    return ((sin != 0) | (cos != 1)).any(dim=1)


@cache
def turning_kernel() -> Kernel | None:
    """The kernel, compiled and checked; ``None`` if there is none. Takes seconds when first asked.

    What it compiled to is kept where numba keeps such things, for the next process.
    """
    try:
        kernel = _compiled()
        if _same_bits(kernel):
            return kernel
        log.warning("inferscale: the compiled rotation rounds otherwise than torch; torch is used")
    except ImportError:
        log.debug("inferscale: numba is not installed; keys are turned by torch")
    except Exception:
        log.warning("inferscale: the rotation was not compiled; torch is used", exc_info=True)
    return None


def _compiled() -> Kernel:
    import numpy as np

    from inferscale_sdk.injection.host_kernel import turn_keys

    def kernel(data: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        layer, kv, token, kv_head, head_dim = data.shape
        width = kv_head * head_dim
        turn_keys(
            data.view(torch.uint16).view(layer, kv, token, width).numpy(),
            cos.contiguous().numpy(),
            sin.contiguous().numpy(),
            moved_tokens(cos, sin).nonzero().flatten().numpy(),
            head_dim,
            np.empty(width, np.float32),
        )

    return kernel


def _same_bits(kernel: Kernel) -> bool:
    """Compared to torch on every kind of row: turned and still, whole and partial rotation."""
    draw = torch.Generator().manual_seed(0)
    same = True
    for rotary_dim in (64, 32):
        data = torch.randn((2, 2, 256, 3, 64), generator=draw).to(torch.bfloat16)
        angles = torch.rand((256, rotary_dim // 2), generator=draw) * 6.3
        angles[::7] = 0.0
        wanted = data.clone()
        rotate_into(
            wanted[:, 0],
            wanted[:, 0],
            angles.cos(),
            angles.sin(),
            interleaved=False,
            rotary_dim=rotary_dim,
        )
        kernel(data, angles.cos(), angles.sin())
        same = same and torch.equal(data.view(torch.int16), wanted.view(torch.int16))
    return same
