"""Keys and values in fewer bytes. Pure functions on ``[layer, kv, token, kv_head, head_dim]``.

| storage dtype | codes | scales | bytes of a bfloat16 segment |
|---|---|---|---|
| ``as_cache`` | none: the tensor as it is | none | 1 |
| ``fp8`` | e4m3 | one per layer, kv and head | 1/2 |
| ``int8`` | signed bytes | keys: per channel; values: per token | 1/2 and some |
| ``int4`` | two to a byte | as int8, with an offset, in groups of 32 | 1/4 and some |

Keys have a few channels that are large at every token, values have not; a scale per channel keeps
a large channel from costing the others their precision (KIVI, arXiv 2402.02750, section 3). Scales
are rounded before codes are computed with them, so rounding them costs no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from inferscale_sdk.kv.layout import HEAD_DIM, KEY, KV, TOKEN, VALUE, dtype_name

__all__ = ["Packed", "StorageDtype", "TensorSpec", "dequantize", "packed_specs", "quantize"]

FP8 = torch.float8_e4m3fn
SCALE = torch.bfloat16  # float32's range: a scale never becomes zero or infinite
GROUP = 32
_INT8_MAX, _INT4_MAX = 127, 15
_CACHE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class StorageDtype(StrEnum):
    """How a tier keeps keys and values."""

    AS_CACHE = "as_cache"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of one stored tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Packed:
    """A segment's tensor in a storage dtype.

    Args:
        storage: Which.
        dtype: Of the tensor that comes back.
        shape: Of the tensor that comes back, ``[layer, kv, token, kv_head, head_dim]``.
        tensors: By name, as :func:`packed_specs` lists them.
    """

    storage: StorageDtype
    dtype: torch.dtype
    shape: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def packed_specs(
    storage: StorageDtype, dtype: torch.dtype, shape: Sequence[int]
) -> tuple[TensorSpec, ...]:
    """The tensors that a segment of ``shape`` is kept in, in the order of their bytes at rest.

    Args:
        storage: How it is kept.
        dtype: Of the segment.
        shape: ``[layer, kv, token, kv_head, head_dim]``.

    Raises:
        ValueError: A segment of that dtype or shape cannot be kept so.
    """
    if storage is StorageDtype.AS_CACHE:
        return (TensorSpec("kv", dtype, tuple(shape)),)
    if dtype not in _CACHE_DTYPES:
        raise ValueError(
            f"a segment of {dtype_name(dtype)} cannot be stored as {storage}; use 'as_cache'"
        )
    layer, kv, token, head, dim = shape
    if storage is StorageDtype.FP8:
        return (
            TensorSpec("kv", FP8, tuple(shape)),
            TensorSpec("scale", torch.float32, (layer, kv, 1, head, 1)),
        )
    if storage is StorageDtype.INT8:
        return (
            TensorSpec("kv", torch.int8, tuple(shape)),
            TensorSpec("key_scale", SCALE, (layer, 1, head, dim)),
            TensorSpec("value_scale", SCALE, (layer, token, head, 1)),
        )
    if dim % 2:
        raise ValueError(f"int4 needs an even head_dim, this one is {dim}; use 'int8'")
    key_groups, value_groups = -(-token // GROUP), -(-dim // GROUP)
    return (
        TensorSpec("kv", torch.uint8, (layer, kv, token, head, dim // 2)),
        TensorSpec("key_scale", SCALE, (layer, 2, key_groups, head, dim)),
        TensorSpec("value_scale", SCALE, (layer, 2, token, head, value_groups)),
    )


def quantize(data: torch.Tensor, storage: StorageDtype) -> Packed:
    """Bring a segment's tensor into a storage dtype.

    Args:
        data: ``[layer, kv, token, kv_head, head_dim]``. Not copied for ``as_cache``.
        storage: The storage dtype.

    Raises:
        ValueError: Its dtype or shape does not allow it, or a number in it is not finite.
    """
    specs = packed_specs(storage, data.dtype, data.shape)
    if storage is StorageDtype.AS_CACHE:
        tensors: dict[str, torch.Tensor] = {"kv": data}
    else:
        plain = data.detach().to(torch.float32)
        if not bool(plain.isfinite().all()):
            raise ValueError(f"keys or values are not finite and cannot be stored as {storage}")
        tensors = _CODERS[storage](plain)
    for spec in specs:
        assert tuple(tensors[spec.name].shape) == spec.shape, spec
    ordered = {spec.name: tensors[spec.name].contiguous() for spec in specs}
    return Packed(storage, data.dtype, tuple(data.shape), ordered)


def dequantize(packed: Packed) -> torch.Tensor:
    """The tensor ``[layer, kv, token, kv_head, head_dim]`` in the cache's dtype, contiguous.

    For ``as_cache`` it is the stored tensor itself.
    """
    tensors = packed.tensors
    match packed.storage:
        case StorageDtype.AS_CACHE:
            return tensors["kv"]
        case StorageDtype.FP8:
            plain = tensors["kv"].to(torch.float32) * tensors["scale"]
        case StorageDtype.INT8:
            plain = tensors["kv"].to(torch.float32)
            plain[:, KEY] *= tensors["key_scale"].to(torch.float32)
            plain[:, VALUE] *= tensors["value_scale"].to(torch.float32)
        case StorageDtype.INT4:
            plain = _from_int4(tensors)
    return plain.to(packed.dtype)


def _to_fp8(data: torch.Tensor) -> dict[str, torch.Tensor]:
    largest = data.abs().amax(dim=(TOKEN, HEAD_DIM), keepdim=True)
    scale = _positive(largest / torch.finfo(FP8).max)  # [layer, kv, 1, kv_head, 1]
    limit = torch.finfo(FP8).max
    return {"kv": (data / scale).clamp(-limit, limit).to(FP8), "scale": scale}


def _to_int8(data: torch.Tensor) -> dict[str, torch.Tensor]:
    keys, values = data.unbind(KV)  # each [layer, token, kv_head, head_dim]
    key_scale = _rounded(keys.abs().amax(dim=1, keepdim=True) / _INT8_MAX)
    value_scale = _rounded(values.abs().amax(dim=3, keepdim=True) / _INT8_MAX)
    codes = torch.stack([keys / key_scale.float(), values / value_scale.float()], dim=KV)
    codes = codes.round_().clamp_(-_INT8_MAX, _INT8_MAX).to(torch.int8)
    return {"kv": codes, "key_scale": key_scale, "value_scale": value_scale}


def _to_int4(data: torch.Tensor) -> dict[str, torch.Tensor]:
    keys, values = data.unbind(KV)  # each [layer, token, kv_head, head_dim]
    key_codes, key_scale = _grouped_codes(keys, dim=1)
    value_codes, value_scale = _grouped_codes(values, dim=3)
    codes = torch.stack([key_codes, value_codes], dim=KV)
    low, high = codes[..., 0::2], codes[..., 1::2]
    return {"kv": low | high << 4, "key_scale": key_scale, "value_scale": value_scale}


def _grouped_codes(data: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes 0 … 15 of ``data``, and offset and step of each group of 32 along ``dim``.

    Returns:
        uint8 of the shape of ``data``, and ``[layer, 2, …]`` with ``dim`` counted in groups.
    """
    groups = torch.split(data, GROUP, dim=dim)
    lowest = torch.cat([part.amin(dim=dim, keepdim=True) for part in groups], dim=dim)
    highest = torch.cat([part.amax(dim=dim, keepdim=True) for part in groups], dim=dim)
    offset = lowest.to(SCALE)
    # The rounded offset may lie above the lowest value; the step must reach both ends from it.
    reach = torch.maximum(highest - offset.float(), (highest - lowest))
    step = _rounded(reach / _INT4_MAX)
    size = data.shape[dim]
    at, by = _spread(offset, dim, size), _spread(step, dim, size)
    codes = ((data - at) / by).round_().clamp_(0, _INT4_MAX).to(torch.uint8)
    return codes, torch.stack([offset, step], dim=1)


def _from_int4(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    packed = tensors["kv"]
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).to(torch.float32)
    for half, name, dim in ((KEY, "key_scale", 1), (VALUE, "value_scale", 3)):
        offset, step = tensors[name].unbind(1)
        part = codes[:, half]
        size = part.shape[dim]
        part.mul_(_spread(step, dim, size)).add_(_spread(offset, dim, size))
    return codes


def _spread(per_group: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """One number per group becomes one per element along ``dim``, as float32."""
    return per_group.float().repeat_interleave(GROUP, dim=dim).narrow(dim, 0, size)


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """Where everything is zero, any scale will do."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _rounded(scale: torch.Tensor) -> torch.Tensor:
    """A positive scale in the dtype it is stored in."""
    return _positive(_positive(scale).to(SCALE))


_CODERS = {
    StorageDtype.FP8: _to_fp8,
    StorageDtype.INT8: _to_int8,
    StorageDtype.INT4: _to_int4,
}
