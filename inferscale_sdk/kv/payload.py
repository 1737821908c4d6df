"""A segment's tensors as the bytes of a safetensors file, and back without copying."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import torch

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.layout import dtype_name
from inferscale_sdk.kv.quantize import TensorSpec

__all__ = ["DTYPES_BY_NAME", "raw_bytes", "tensors_header", "view_tensors"]

# Names of safetensors' format for the dtypes that a KV cache may have.
_SAFETENSORS_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.uint8: "U8",
    torch.int8: "I8",
}

DTYPES_BY_NAME = {dtype_name(dtype): dtype for dtype in _SAFETENSORS_DTYPES}
"""The dtypes that can be stored, by their names in the header."""


def tensors_header(specs: Sequence[TensorSpec]) -> bytes:
    """The header of a safetensors file with these tensors, one after another.

    Raises:
        ValueError: A dtype has no name in the format.
    """
    entries, offset = {}, 0
    for spec in specs:
        if spec.dtype not in _SAFETENSORS_DTYPES:
            raise ValueError(
                f"dtype {dtype_name(spec.dtype)} cannot be stored; "
                f"the format knows {sorted(DTYPES_BY_NAME)}"
            )
        entries[spec.name] = {
            "dtype": _SAFETENSORS_DTYPES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    body = json.dumps(entries, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's bytes; a view of it if it lies in host memory."""
    raw = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    assert isinstance(raw, memoryview)
    return raw


def view_tensors(payload: memoryview, specs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """The tensors inside a payload whose checksum is right, as views of it.

    Raises:
        CorruptSegment: The payload does not consist of exactly these tensors.
    """
    header = tensors_header(specs)
    start = len(header)
    nbytes = sum(spec.nbytes for spec in specs)
    if payload[:start] != header or len(payload) != start + nbytes or nbytes == 0:
        raise CorruptSegment(
            "shape mismatch: the payload is not "
            + ", ".join(f"{dtype_name(spec.dtype)} {list(spec.shape)}" for spec in specs)
        )
    tensors = {}
    for spec in specs:
        part = payload[start : start + spec.nbytes]
        tensors[spec.name] = _view(part, spec)
        start += spec.nbytes
    return tensors


def _view(part: memoryview, spec: TensorSpec) -> torch.Tensor:
    # By way of bytes: a tensor behind another one need not start at a multiple of its items' size.
    flat = torch.frombuffer(part, dtype=torch.uint8)
    if flat.data_ptr() % spec.dtype.itemsize:
        flat = flat.clone()
    return flat.view(spec.dtype).view(spec.shape)
