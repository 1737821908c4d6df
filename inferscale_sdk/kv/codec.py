r"""The file format of a segment, version 1.

    offset  bytes  content
    0       8      magic  b"\x89IFSKV\r\n"
    8       4      format version, uint32 little-endian
    12      4      header length H in bytes, uint32 little-endian
    16      4      CRC-32 of the header, uint32 little-endian
    20      H      header: one JSON object in UTF-8, padded with spaces at its end
    20+H    rest   payload: a safetensors file with the one tensor ``kv``

The header's length is chosen so that the tensor's bytes start at a multiple of 64. Its fields are
``key``, ``fingerprint``, ``origin``, ``n_tokens``, ``token_digest``, ``dtype``, ``shape``,
``checksum`` (algorithm and digest of the payload) and ``payload_bytes``. Every byte of a file is
under the magic, the version check, or one of the two checksums, so no flipped bit goes unseen.

CRC-32 finds accidents: torn writes, bad sectors, truncation. It runs at memory speed (7 GB/s where
BLAKE2b reaches 1.4), which matters because it is paid on the way to the first token. It is no
protection against somebody who may write into the store's folder; file permissions are.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.layout import DIMS, TOKEN, dtype_name
from inferscale_sdk.kv.segment import Segment

__all__ = ["FORMAT_VERSION", "MAGIC", "SegmentHeader", "dump", "load", "read_header"]

MAGIC = b"\x89IFSKV\r\n"
FORMAT_VERSION = 1
CHECKSUM = "crc32"
TENSOR_NAME = "kv"

_PREFIX = struct.Struct("<8sIII")
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 1 << 20

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
_DTYPES_BY_NAME = {dtype_name(dtype): dtype for dtype in _SAFETENSORS_DTYPES}

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a file says about the segment in it; see the module for the meaning."""

    key: str
    fingerprint: str
    origin: int
    n_tokens: int
    token_digest: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str
    payload_bytes: int


def dump(segment: Segment, fingerprint: str) -> list[bytes | memoryview]:
    """Write a segment as buffers that follow one another in the file.

    Args:
        segment: What to write. Its tensor is not copied if it lies in host memory.
        fingerprint: The model that made it.

    Returns:
        The file's bytes in pieces; the last one is a view of the segment's tensor.

    Raises:
        ValueError: The tensor's dtype has no name in the format.
    """
    dtype = segment.data.dtype
    if dtype not in _SAFETENSORS_DTYPES:
        raise ValueError(
            f"dtype {dtype_name(dtype)} cannot be stored; "
            f"the format knows {sorted(_DTYPES_BY_NAME)}"
        )
    raw = segment.data.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    tensors_header = _safetensors_header(dtype, segment.data.shape, segment.nbytes)
    checksum = zlib.crc32(raw, zlib.crc32(tensors_header))
    header = SegmentHeader(
        key=segment.key,
        fingerprint=fingerprint,
        origin=segment.origin,
        n_tokens=segment.n_tokens,
        token_digest=segment.token_digest,
        dtype=dtype_name(dtype),
        shape=tuple(segment.data.shape),
        checksum=f"{CHECKSUM}:{checksum:08x}",
        payload_bytes=len(tensors_header) + len(raw),
    )
    body = json.dumps(asdict(header), sort_keys=True, separators=(",", ":")).encode()
    body += b" " * (-(_PREFIX.size + len(body) + len(tensors_header)) % _ALIGNMENT)
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(body), zlib.crc32(body))
    return [prefix + body + tensors_header, raw]


def load(
    buffer: Buffer, *, expect_key: str | None = None, expect_fingerprint: str | None = None
) -> Segment:
    """Read a segment and check everything that can be checked.

    Args:
        buffer: The whole file. A writable buffer (``bytearray``) is used in place: the segment's
            tensor is a view of it, and the caller must not change it any more. A read-only one is
            copied once.
        expect_key: The key under which the file was found, ``None`` to take any.
        expect_fingerprint: The model that is loaded, ``None`` to take any.

    Returns:
        The segment; its tensor lies in host memory.

    Raises:
        CorruptSegment: The file is truncated or too long, is not a segment, has another format
            version, fails a checksum, or holds another key, model or shape than it should.
    """
    header, start = _parse(buffer)
    if expect_key is not None and header.key != expect_key:
        raise CorruptSegment(f"key mismatch: the file holds {header.key}, wanted {expect_key}")
    if expect_fingerprint is not None and header.fingerprint != expect_fingerprint:
        raise CorruptSegment(
            f"model mismatch: the file was made by {header.fingerprint!r}, "
            f"the model loaded is {expect_fingerprint!r}"
        )
    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    payload = memoryview(buffer)[start:]
    if len(payload) != header.payload_bytes:
        what = "truncated" if len(payload) < header.payload_bytes else "too long"
        raise CorruptSegment(
            f"{what}: the payload has {len(payload)} bytes, the header says {header.payload_bytes}"
        )
    checksum = f"{CHECKSUM}:{zlib.crc32(payload):08x}"
    if checksum != header.checksum:
        raise CorruptSegment(f"checksum mismatch: payload {checksum}, header {header.checksum}")
    data = _view_tensor(payload, header)
    return Segment(header.key, data, header.origin, header.token_digest)


def read_header(buffer: Buffer) -> SegmentHeader:
    """Read only the header; ``buffer`` may end anywhere after it.

    Raises:
        CorruptSegment: The header is missing, damaged or of another format version.
    """
    return _parse(buffer)[0]


def _parse(buffer: Buffer) -> tuple[SegmentHeader, int]:
    """The header, and where the payload starts."""
    view = memoryview(buffer)
    if len(view) < _PREFIX.size:
        raise CorruptSegment(f"truncated: {len(view)} bytes, the prefix has {_PREFIX.size}")
    magic, version, length, checksum = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CorruptSegment(f"bad magic: the file starts with {magic!r}, a segment with {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise CorruptSegment(
            f"format version {version} is not supported; this release reads {FORMAT_VERSION}"
        )
    start = _PREFIX.size + length
    if length > _MAX_HEADER_BYTES or len(view) < start:
        raise CorruptSegment(f"truncated: {len(view)} bytes, the header ends at {start}")
    body = view[_PREFIX.size : start]
    if zlib.crc32(body) != checksum:
        raise CorruptSegment(
            f"header checksum mismatch: {zlib.crc32(body):08x}, the prefix says {checksum:08x}"
        )
    return _header_from(bytes(body)), start


def _header_from(body: bytes) -> SegmentHeader:
    """The header in JSON whose checksum is right: what is wrong now, its writer did wrong."""
    try:
        fields: dict[str, Any] = json.loads(body)
        header = SegmentHeader(**{**fields, "shape": tuple(fields["shape"])})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptSegment(f"header not understood: {error}") from None
    counts = (header.origin, header.n_tokens, header.payload_bytes, *header.shape)
    if any(type(count) is not int or count < 0 for count in counts):
        raise CorruptSegment(f"header not understood: negative or not a number in {header}")
    if header.dtype not in _DTYPES_BY_NAME:
        raise CorruptSegment(f"dtype {header.dtype!r} is not one of {sorted(_DTYPES_BY_NAME)}")
    if len(header.shape) != len(DIMS) or header.shape[TOKEN] != header.n_tokens:
        raise CorruptSegment(
            f"shape mismatch: {list(header.shape)} is not {list(DIMS)} of {header.n_tokens} tokens"
        )
    return header


def _safetensors_header(dtype: torch.dtype, shape: Sequence[int], nbytes: int) -> bytes:
    entry = {
        TENSOR_NAME: {
            "dtype": _SAFETENSORS_DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [0, nbytes],
        }
    }
    body = json.dumps(entry, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body


def _view_tensor(payload: memoryview, header: SegmentHeader) -> torch.Tensor:
    """The tensor inside a payload whose checksum is right, without copying it."""
    dtype = _DTYPES_BY_NAME[header.dtype]
    nbytes = math.prod(header.shape) * dtype.itemsize
    tensors_header = _safetensors_header(dtype, header.shape, nbytes)
    start = len(tensors_header)
    if payload[:start] != tensors_header or len(payload) != start + nbytes or nbytes == 0:
        raise CorruptSegment(
            f"shape mismatch: the payload is not one {header.dtype} tensor of {list(header.shape)}"
        )
    return torch.frombuffer(payload, dtype=dtype, offset=start).view(header.shape)
