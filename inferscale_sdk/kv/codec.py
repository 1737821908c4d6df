r"""The file format of a segment, versions 1 and 2.

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

Version 2 adds ``owner`` (whose budget it counts against, a digest) and ``storage`` (see
:mod:`inferscale_sdk.kv.quantize`; ``dtype`` and ``shape`` are those of the tensor that comes back,
and the payload has the codes as ``kv`` and their scales beside it). Both are left out when they
say nothing; a segment that needs neither is written as version 1.

CRC-32 finds accidents: torn writes, bad sectors, truncation. It runs at memory speed (7 GB/s where
BLAKE2b reaches 1.4), which matters because it is paid on the way to the first token. It is no
protection against somebody who may write into the store's folder; file permissions are, and
encryption (:mod:`inferscale_sdk.kv.cipher`).
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.layout import DIMS, KV, TOKEN, dtype_name
from inferscale_sdk.kv.payload import DTYPES_BY_NAME, raw_bytes, tensors_header, view_tensors
from inferscale_sdk.kv.quantize import Packed, StorageDtype, dequantize, packed_specs, quantize
from inferscale_sdk.kv.segment import Segment, check_owner

__all__ = ["FORMAT_VERSION", "MAGIC", "SegmentHeader", "dump", "load", "read_header"]

MAGIC = b"\x89IFSKV\r\n"
FORMAT_VERSION = 2
CHECKSUM = "crc32"

_PREFIX = struct.Struct("<8sIII")
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 1 << 20

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
    owner: str = ""
    storage: str = StorageDtype.AS_CACHE.value

    @property
    def version(self) -> int:
        """The lowest format version that can say all this."""
        return 1 if all(getattr(self, name) == _NEW_IN_2[name] for name in _NEW_IN_2) else 2

    def as_json(self) -> bytes:
        """The header as it stands in the file, without padding."""
        fields = asdict(self)
        for name, default in _NEW_IN_2.items():
            if fields[name] == default:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


_TEXTS = ("key", "fingerprint", "token_digest", "dtype", "checksum", "owner", "storage")
_NEW_IN_2 = {"owner": "", "storage": StorageDtype.AS_CACHE.value}


def dump(
    segment: Segment, fingerprint: str, storage: StorageDtype = StorageDtype.AS_CACHE
) -> list[bytes | memoryview]:
    """Write a segment as buffers that follow one another in the file.

    Args:
        segment: What to write. Its tensor is not copied if it lies in host memory and is stored
            as it is.
        fingerprint: The model that made it.
        storage: How the numbers are stored.

    Returns:
        The file's bytes in pieces; all but the first are views of tensors.

    Raises:
        ValueError: The tensor's dtype has no name in the format, or the tensor cannot be stored
            in that storage dtype.
    """
    packed = quantize(segment.data, storage)
    specs = packed_specs(storage, packed.dtype, packed.shape)
    start = tensors_header(specs)
    raws = [raw_bytes(tensor) for tensor in packed.tensors.values()]
    checksum = zlib.crc32(start)
    for raw in raws:
        checksum = zlib.crc32(raw, checksum)
    header = SegmentHeader(
        key=segment.key,
        fingerprint=fingerprint,
        origin=segment.origin,
        n_tokens=segment.n_tokens,
        token_digest=segment.token_digest,
        dtype=dtype_name(packed.dtype),
        shape=packed.shape,
        checksum=f"{CHECKSUM}:{checksum:08x}",
        payload_bytes=len(start) + sum(map(len, raws)),
        owner=segment.owner,
        storage=storage.value,
    )
    body = header.as_json()
    body += b" " * (-(_PREFIX.size + len(body) + len(start)) % _ALIGNMENT)
    prefix = _PREFIX.pack(MAGIC, header.version, len(body), zlib.crc32(body))
    return [prefix + body + start, *raws]


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
        The segment, in the dtype of its cache; its tensor lies in host memory.

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
    data = _tensor(payload, header)
    return Segment(header.key, data, header.origin, header.token_digest, header.owner)


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
    if version not in (1, FORMAT_VERSION):
        raise CorruptSegment(
            f"format version {version} is not supported; this release reads 1 and {FORMAT_VERSION}"
        )
    start = _PREFIX.size + length
    if length > _MAX_HEADER_BYTES or len(view) < start:
        raise CorruptSegment(f"truncated: {len(view)} bytes, the header ends at {start}")
    body = view[_PREFIX.size : start]
    if zlib.crc32(body) != checksum:
        raise CorruptSegment(
            f"header checksum mismatch: {zlib.crc32(body):08x}, the prefix says {checksum:08x}"
        )
    header = _header_from(bytes(body))
    if header.version != version:
        raise CorruptSegment(
            f"header not understood: format version {version} has other fields than {header}"
        )
    return header, start


def _header_from(body: bytes) -> SegmentHeader:
    """The header in JSON whose checksum is right: what is wrong now, its writer did wrong."""
    try:
        fields: dict[str, Any] = json.loads(body)
        header = SegmentHeader(**{**fields, "shape": tuple(fields["shape"])})
        StorageDtype(header.storage)
        check_owner(header.owner)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptSegment(f"header not understood: {error}") from None
    if any(type(getattr(header, name)) is not str for name in _TEXTS):
        raise CorruptSegment(f"header not understood: not a text in {header}")
    counts = (header.origin, header.n_tokens, header.payload_bytes, *header.shape)
    if any(type(count) is not int or count < 0 for count in counts):
        raise CorruptSegment(f"header not understood: negative or not a number in {header}")
    if header.dtype not in DTYPES_BY_NAME:
        raise CorruptSegment(f"dtype {header.dtype!r} is not one of {sorted(DTYPES_BY_NAME)}")
    shape = header.shape
    fits = len(shape) == len(DIMS) and shape[TOKEN] == header.n_tokens
    if not fits or shape[KV] != 2 or 0 in shape:
        raise CorruptSegment(
            f"shape mismatch: {list(header.shape)} is not {list(DIMS)} of {header.n_tokens} tokens"
        )
    return header


def _tensor(payload: memoryview, header: SegmentHeader) -> torch.Tensor:
    """The segment's tensor out of a payload whose checksum is right."""
    storage, dtype = StorageDtype(header.storage), DTYPES_BY_NAME[header.dtype]
    try:
        specs = packed_specs(storage, dtype, header.shape)
    except ValueError as error:
        raise CorruptSegment(f"header not understood: {error}") from None
    return dequantize(Packed(storage, dtype, header.shape, view_tensors(payload, specs)))
