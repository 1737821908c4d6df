"""What numba lacks for copying and turning numbers in registers. Imports numba: import it late."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["LANES", "fma", "pointer", "transpose"]

LANES = 8
"""Rows and columns that are transposed at once."""


@intrinsic  # type: ignore[untyped-decorator]
def fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """A * b + c, rounded once, as torch's vectorised kernels do it."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        real = ir.FloatType()
        kind = ir.FunctionType(real, [real] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fma", [real], kind), args)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, like: Any, _address: Any) -> Any:
    """``pointer(like, address)``: to numbers such as the array ``like`` has, for ``carray``."""
    kind = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], context.get_value_type(kind))

    return kind(like, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def transpose(
    _context: Any, like: Any, _source: Any, _step: Any, _target: Any, _stride: Any
) -> Any:
    """``transpose(like, source, step, target, stride)``: :data:`LANES` rows of as many numbers.

    They are such as the array ``like`` has. ``source`` is the address of the first row, ``step``
    the bytes from row to row; ``target`` and ``stride`` are the same of the result. Nothing need be
    aligned.
    """
    wide = ir.IntType(64)
    vector = ir.VectorType(ir.IntType(like.dtype.bitwidth), LANES)
    lanes = ir.VectorType(ir.IntType(32), LANES)
    # One after the other from two rows, of their lower and of their upper halves.
    lower = ir.Constant(lanes, [i // 2 + LANES * (i % 2) for i in range(LANES)])
    upper = ir.Constant(lanes, [i // 2 + LANES * (i % 2) + LANES // 2 for i in range(LANES)])

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, source, step, target, stride = args

        def row(base: Any, step: Any, i: int) -> Any:
            at = builder.add(base, builder.mul(step, ir.Constant(wide, i)))
            return builder.inttoptr(at, vector.as_pointer())

        rows = [builder.load(row(source, step, i), align=1) for i in range(LANES)]
        for _ in range(LANES.bit_length() - 1):
            halves = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
            rows = [
                builder.shuffle_vector(one, other, mask)
                for one, other in halves
                for mask in (lower, upper)
            ]
        for i, made in enumerate(rows):
            builder.store(made, row(target, stride, i), align=1)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate
