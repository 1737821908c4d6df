"""What numba lacks for copying and turning numbers in registers. Imports numba: import it late.

A number of a cache is taken as its bits: of float32, or of bfloat16, which numpy has as uint16.
Addresses are int64, and nothing need be aligned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

__all__ = [
    "LANES",
    "LINE",
    "copy_line",
    "fma",
    "pointer",
    "prefetch",
    "prefetch_to_write",
    "transpose",
    "turn_and_transpose",
]

LANES = 8
"""Rows and columns that are turned and transposed at once."""
LINE = 64
"""Bytes of a line of the processor's cache."""

_WIDE = ir.IntType(64)
_BYTE = ir.IntType(8)
_REALS = ir.VectorType(ir.FloatType(), LANES)
_BITS = ir.VectorType(ir.IntType(32), LANES)


@intrinsic  # type: ignore[untyped-decorator]
def fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """A * b + c, rounded once, as torch's vectorised kernels do it."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _fma(builder, *args)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, like: Any, _address: Any) -> Any:
    """``pointer(like, address)``: to numbers such as the array ``like`` has, for ``carray``."""
    kind = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], context.get_value_type(kind))

    return kind(like, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_line(_context: Any, _source: Any, _target: Any) -> Any:
    """``copy_line(source, target)``: :data:`LINE` bytes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _store(builder, _load(builder, args[0], ir.VectorType(_BYTE, LINE)), args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, _address: Any) -> Any:
    """Have the line at that address at hand soon."""
    return _prefetching(to_write=False)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_to_write(_context: Any, _address: Any) -> Any:
    """The same for a line that is written; any address will do."""
    return _prefetching(to_write=True)


def _prefetching(*, to_write: bool) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place, number = _BYTE.as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        near, data = number(3), number(1)
        builder.call(
            function, [builder.inttoptr(args[0], place), number(int(to_write)), near, data]
        )
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def transpose(
    _context: Any, like: Any, _rows: Any, _offset: Any, _target: Any, _stride: Any
) -> Any:
    """``transpose(like, rows, offset, target, stride)``: :data:`LANES` numbers of as many rows.

    They are such as the array ``like`` has. ``rows`` is where the rows' addresses lie, to each of
    which ``offset`` bytes are added; ``target`` is where the first column goes, ``stride`` the
    bytes from there to the next.
    """
    vector = _stored(like)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, rows, offset, target, stride = args
        loaded = [_load(builder, at, vector) for at in _listed(builder, rows, offset)]
        _store_columns(builder, loaded, target, stride)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate


@intrinsic  # type: ignore[untyped-decorator]
def turn_and_transpose(
    _context: Any, like: Any, _rows: Any, _offset: Any, _target: Any, _stride: Any,
    _half: Any, _cos: Any, _sin: Any, _angle: Any, _moved: Any,
) -> Any:  # fmt: skip
    """``turn_and_transpose(like, rows, offset, target, stride, half, cos, sin, angle, moved)``.

    As :func:`transpose`, for channels at ``offset`` and those ``half`` channels later, which are
    turned as pairs. ``cos`` and ``sin`` are where the addresses of each row's cosines and sines
    lie, float32, to which ``angle`` bytes are added; ``moved`` is where :data:`LANES` bytes lie,
    0 for a row that keeps its bits. What is turned is rounded once.
    """
    vector = _stored(like)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, rows, offset, target, stride, half, cos, sin, angle, moved = args
        targets = target, builder.add(target, builder.mul(half, stride))
        ahead = builder.mul(half, _WIDE(like.dtype.bitwidth // 8))

        def pairs() -> Iterable[tuple[Any, Any]]:
            """Of each row, what is stored and what becomes of it when it is turned."""
            places = (
                _listed(builder, rows, offset),
                _listed(builder, cos, angle),
                _listed(builder, sin, angle),
            )
            for row, *angles in zip(*places, strict=True):
                stored = [_load(builder, at, vector) for at in (row, builder.add(row, ahead))]
                x, y = (_as_real(builder, numbers) for numbers in stored)
                c, s = (_load(builder, at, _REALS) for at in angles)
                turned = (
                    _fma(builder, builder.fneg(y), s, builder.fmul(x, c)),
                    _fma(builder, x, s, builder.fmul(y, c)),
                )
                yield stored, [_as_stored(builder, part, vector) for part in turned]

        def store(made: Iterable[Any]) -> None:
            for column, at in zip(zip(*made, strict=True), targets, strict=True):
                _store_columns(builder, list(column), at, stride)

        all_moved = _WIDE(int.from_bytes(b"\1" * LANES, "little"))
        flags = _load(builder, moved, _WIDE)
        with builder.if_else(builder.icmp_unsigned("==", flags, all_moved)) as (every, some):
            with every:
                store(turned for _, turned in pairs())
            with some:
                chosen = []
                for i, (stored, turned) in enumerate(pairs()):
                    flag = _load(builder, builder.add(moved, _WIDE(i)), _BYTE)
                    turns = builder.icmp_unsigned("!=", flag, _BYTE(0))
                    both = zip(turned, stored, strict=True)
                    chosen.append([builder.select(turns, new, old) for new, old in both])
                store(chosen)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 9), generate


# -- pieces of code -------------------------------------------------------------------------------


def _stored(like: Any) -> Any:
    return ir.VectorType(ir.IntType(like.dtype.bitwidth), LANES)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder: Any, numbers: Any, address: Any) -> None:
    builder.store(numbers, builder.inttoptr(address, numbers.type.as_pointer()), align=1)


def _listed(builder: Any, addresses: Any, offset: Any) -> Iterable[Any]:
    """The addresses that lie there, each with the offset added."""
    step = _WIDE.width // 8
    for i in range(LANES):
        at = _load(builder, builder.add(addresses, _WIDE(i * step)), _WIDE)
        yield builder.add(at, offset)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    several = f"v{LANES}" if isinstance(a.type, ir.VectorType) else ""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = get_or_insert_function(builder.module, kind, f"llvm.fma.{several}f32")
    return builder.call(function, (a, b, c))


def _as_real(builder: Any, numbers: Any) -> Any:
    if numbers.type.element.width == 16:  # the upper half of a float32
        numbers = builder.shl(builder.zext(numbers, _BITS), _splat(16))
    return builder.bitcast(numbers, _REALS)


def _as_stored(builder: Any, reals: Any, kind: Any) -> Any:
    bits = builder.bitcast(reals, _BITS)
    if kind.element.width != 16:
        return bits
    # To the nearest; to the even one between two.
    odd = builder.and_(builder.lshr(bits, _splat(16)), _splat(1))
    bits = builder.add(builder.add(bits, _splat(0x7FFF)), odd)
    return builder.trunc(builder.lshr(bits, _splat(16)), kind)


def _splat(number: int) -> Any:
    return ir.Constant(_BITS, [number] * LANES)


def _store_columns(builder: Any, rows: list[Any], target: Any, stride: Any) -> None:
    # One after the other from two rows, of their lower and of their upper halves.
    lower = ir.Constant(_BITS, [i // 2 + LANES * (i % 2) for i in range(LANES)])
    upper = ir.Constant(_BITS, [i // 2 + LANES * (i % 2) + LANES // 2 for i in range(LANES)])
    for _ in range(LANES.bit_length() - 1):
        halves = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
        rows = [
            builder.shuffle_vector(one, other, mask)
            for one, other in halves
            for mask in (lower, upper)
        ]
    for i, column in enumerate(rows):
        _store(builder, column, builder.add(target, builder.mul(stride, _WIDE(i))))
