"""The kernel that writes segments into a paged cache: all layers in one launch.

A program has a few tokens of one layer. It reads their keys and values once, turns the keys in
registers and writes both. Arithmetic and rounding are those of
:func:`~inferscale_sdk.rope.rotate.rotate_into` and
:meth:`~inferscale_sdk.rope.table.RotaryTable.moves`: float32, each operation rounded by itself but
for the fused multiply-add of the rotation, one rounding to the cache's dtype at the end.

Importing this module imports triton; :mod:`inferscale_sdk.injection.paged` does so when there is a
device for it.
"""

import triton
import triton.language as tl

__all__ = ["ELEMENTS", "LAYER_FIELDS", "TOKEN_FIELDS", "write_pages"]

TOKEN_FIELDS = ("source", "plane", "slot", "old", "new")
"""Rows of the table ``tokens``: the address of the token's first key; bytes from there to its first
value, which is half of those to the next layer; its slot in the cache; the position that its keys
were rotated at; the position where they shall stand."""

LAYER_FIELDS = ("layer", "keys", "values", "cos", "sin")
"""Columns of the table ``layers``: its number in the sources; addresses of its cache's keys and
values, and of its rotation table's rows, 0 for a layer without positions."""

ELEMENTS = {
    "bfloat16": (tl.bfloat16, tl.uint16),
    "float16": (tl.float16, tl.uint16),
    "float32": (tl.float32, tl.uint32),
}
"""Dtypes of keys and values, each with the unsigned integer of its size."""


@triton.jit  # type: ignore[untyped-decorator]
def _widened(bits, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Stored bits as float32, exactly."""
    if tl.bfloat16 == DTYPE:
        wide = (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = bits.to(DTYPE, bitcast=True).to(tl.float32)
    return wide


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(value, DTYPE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Float32 as stored bits, to the nearest, ties to even."""
    if tl.bfloat16 == DTYPE:
        # Not by a cast: triton's interpreter cuts off instead of rounding.
        raw = value.to(tl.uint32, bitcast=True)
        up = raw + 0x7FFF + ((raw >> 16) & 1)
        bits = (tl.where(value == value, up, 0x7FC00000) >> 16).to(BITS)
    else:
        bits = value.to(DTYPE).to(BITS, bitcast=True)
    return bits


@triton.jit(do_not_specialize=["n_tokens"])  # type: ignore[untyped-decorator]
def write_pages(  # type: ignore[no-untyped-def]
    tokens,
    layers,
    n_tokens,
    page_stride,
    slot_stride,
    head_stride,
    PAGE: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    INTERLEAVED: tl.constexpr,  # noqa: N803
    DTYPE: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    ALIGN: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
    HEADS_WIDE: tl.constexpr,  # noqa: N803
    PAIRS_WIDE: tl.constexpr,  # noqa: N803
    REST_WIDE: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Write ``n_tokens`` tokens of some layers into their pages. The grid is (token, layer) tiles.

    Args:
        tokens: int64 ``[field, token]``, see :data:`TOKEN_FIELDS`.
        layers: int64 ``[layer, field]``, see :data:`LAYER_FIELDS`.
        n_tokens: How many there are.
        page_stride: Elements from page to page, in keys and in values.
        slot_stride: Elements from slot to slot.
        head_stride: Elements from head to head.
        PAGE: Slots of a page.
        HEADS: Heads of a token; contiguous in the sources.
        HEAD_DIM: Channels of a head; contiguous in sources and cache.
        HALF: Pairs of channels that turn, 0 for none.
        INTERLEAVED: Pairs are channels (2i, 2i+1) if true, (i, i + HALF) if not.
        DTYPE: Of keys and values.
        BITS: The unsigned integer of the same size.
        SIZE: Its bytes.
        ALIGN: What every address is a multiple of, in bytes.
        TOKENS: Tokens of a tile.
        HEADS_WIDE: Power of two from ``HEADS`` on.
        PAIRS_WIDE: Power of two from ``HALF`` on.
        REST_WIDE: Power of two from ``HEAD_DIM - 2 * HALF`` on, 0 if all channels turn.
        WIDE: Power of two from ``HEAD_DIM`` on.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    there = token < n_tokens
    source = tl.load(tokens + token, mask=there, other=0)
    plane = tl.load(tokens + n_tokens + token, mask=there, other=0)
    slot = tl.load(tokens + 2 * n_tokens + token, mask=there, other=0)
    old = tl.load(tokens + 3 * n_tokens + token, mask=there, other=0)
    new = tl.load(tokens + 4 * n_tokens + token, mask=there, other=0)
    layer = layers + 5 * tl.program_id(1)
    keys_at = tl.load(layer + 1)
    values_at = tl.load(layer + 2)
    cos_at = tl.load(layer + 3)
    sin_at = tl.load(layer + 4)

    keys_from = source + 2 * tl.load(layer) * plane  # bytes [token]
    place = (slot // PAGE) * page_stride + (slot % PAGE) * slot_stride
    pointer: tl.constexpr = tl.pointer_type(BITS)
    key_in = tl.multiple_of(keys_from.to(pointer), ALIGN)[:, None, None]
    value_in = tl.multiple_of((keys_from + plane).to(pointer), ALIGN)[:, None, None]
    key_out = tl.multiple_of((keys_at + place * SIZE).to(pointer), ALIGN)[:, None, None]
    value_out = tl.multiple_of((values_at + place * SIZE).to(pointer), ALIGN)[:, None, None]
    head = tl.arange(0, HEADS_WIDE)[None, :, None]
    ours = there[:, None, None] & (head < HEADS)
    key_in += head * HEAD_DIM
    value_in += head * HEAD_DIM
    key_out += head * head_stride
    value_out += head * head_stride

    channel = tl.arange(0, WIDE)[None, None, :]
    whole = ours & (channel < HEAD_DIM)
    tl.store(value_out + channel, tl.load(value_in + channel, mask=whole, other=0), mask=whole)

    if REST_WIDE > 0:
        channel = 2 * HALF + tl.arange(0, REST_WIDE)[None, None, :]
        rest = ours & (channel < HEAD_DIM)
        tl.store(key_out + channel, tl.load(key_in + channel, mask=rest, other=0), mask=rest)

    if HALF > 0:
        # What turns a key, [token, pair]: once for all heads.
        pair = tl.arange(0, PAIRS_WIDE)
        new = tl.where(cos_at != 0, new, old)
        moved = there & (old != new)
        turned = moved[:, None] & (pair < HALF)[None, :]
        floats: tl.constexpr = tl.pointer_type(tl.float32)
        cos = tl.multiple_of(cos_at.to(floats), ALIGN) + pair[None, :]
        sin = tl.multiple_of(sin_at.to(floats), ALIGN) + pair[None, :]
        old_row = (old * HALF)[:, None]
        new_row = (new * HALF)[:, None]
        old_cos = tl.load(cos + old_row, mask=turned, other=1.0)
        old_sin = tl.load(sin + old_row, mask=turned, other=0.0)
        new_cos = tl.load(cos + new_row, mask=turned, other=1.0)
        new_sin = tl.load(sin + new_row, mask=turned, other=0.0)
        length = old_cos * old_cos + old_sin * old_sin
        c = tl.div_rn(new_cos * old_cos + new_sin * old_sin, length)[:, None, :]
        s = tl.div_rn(new_sin * old_cos - new_cos * old_sin, length)[:, None, :]

        if INTERLEAVED:
            channel = tl.arange(0, 2 * PAIRS_WIDE)[None, None, :]
            pairs = ours & (channel < 2 * HALF)
            bits = tl.load(key_in + channel, mask=pairs, other=0)
            x_bits, y_bits = tl.split(bits.reshape(TOKENS, HEADS_WIDE, PAIRS_WIDE, 2))
        else:
            channel = pair[None, None, :]
            pairs = ours & (channel < HALF)
            x_bits = tl.load(key_in + channel, mask=pairs, other=0)
            y_bits = tl.load(key_in + HALF + channel, mask=pairs, other=0)
        x = _widened(x_bits, DTYPE)
        y = _widened(y_bits, DTYPE)
        # A key that stays keeps its bits: -0.0 * 1 - y * 0 may be +0.0.
        turns = moved[:, None, None]
        x_bits = tl.where(turns, _rounded(tl.fma(-y, s, x * c), DTYPE, BITS), x_bits)
        y_bits = tl.where(turns, _rounded(tl.fma(x, s, y * c), DTYPE, BITS), y_bits)
        if INTERLEAVED:
            bits = tl.join(x_bits, y_bits).reshape(TOKENS, HEADS_WIDE, 2 * PAIRS_WIDE)
            tl.store(key_out + channel, bits, mask=pairs)
        else:
            tl.store(key_out + channel, x_bits, mask=pairs)
            tl.store(key_out + HALF + channel, y_bits, mask=pairs)
