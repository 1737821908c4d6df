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
from typing import Any

import torch

from inferscale_sdk.rope.rotate import rotate_into

__all__ = ["Kernel", "fits", "turning_kernel"]

log = logging.getLogger(__name__)

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Turns the keys of ``[layer, kv, token, kv_head, head_dim]`` in place, by cosines and sines, each
float32 ``[token, rotary_dim/2]``."""


def fits(data: torch.Tensor, *, interleaved: bool) -> bool:
    """Whether the kernel can turn the keys of ``data``."""
    plain = data.device.type == "cpu" and data.dtype is torch.bfloat16
    return plain and not interleaved and data.is_contiguous()


@cache
def turning_kernel() -> Kernel | None:
    """The kernel, compiled and checked; ``None`` if there is none. Takes a second when first asked.

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
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
        """A * b + c, rounded once, as torch's vectorised kernels do it."""

        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            real = ir.FloatType()
            kind = ir.FunctionType(real, [real] * 3)
            return builder.call(builder.module.declare_intrinsic("llvm.fma", [real], kind), args)

        return types.float32(types.float32, types.float32, types.float32), generate

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def turn(data: Any, cos: Any, sin: Any, moved: Any, head_dim: int, row: Any) -> None:
        # data: bfloat16 bits [layer, kv, token, kv_head * head_dim]; row: float32, one token's keys
        half = cos.shape[1]
        width = data.shape[3]
        bits = row.view(np.uint32)
        for layer in range(data.shape[0]):
            for m in range(moved.shape[0]):
                token = moved[m]
                keys = data[layer, 0, token]
                c = cos[token]
                s = sin[token]
                for i in range(width):
                    bits[i] = np.uint32(keys[i]) << np.uint32(16)
                for start in range(0, width, head_dim):
                    first = row[start : start + half]
                    second = row[start + half : start + 2 * half]
                    for i in range(half):
                        x = first[i]
                        y = second[i]
                        first[i] = fma(-y, s[i], x * c[i])
                        second[i] = fma(x, s[i], y * c[i])
                for i in range(width):
                    odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
                    keys[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    def kernel(data: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        layer, kv, token, kv_head, head_dim = data.shape
        width = kv_head * head_dim
        # Tokens that stay keep their bits: -0.0 * 1 - y * 0 may be +0.0.
        still = ((sin == 0) & (cos == 1)).all(dim=1)
        turn(
            data.view(torch.uint16).view(layer, kv, token, width).numpy(),
            cos.contiguous().numpy(),
            sin.contiguous().numpy(),
            (~still).nonzero().flatten().numpy(),
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
