"""The file format: golden bytes, round trips, and every way a file can be bad."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.codec import MAGIC, dump, load, read_header
from inferscale_sdk.kv.payload import tensors_header
from inferscale_sdk.kv.quantize import StorageDtype, dequantize, packed_specs, quantize
from inferscale_sdk.kv.segment import Segment

GOLDEN = Path(__file__).with_name("golden_v1.ifs")
GOLDEN_2 = Path(__file__).with_name("golden_v2.ifs")
OWNER = "0f" * 16
FINGERPRINT = "smollm2-0123456789abcdef"


def golden_segment() -> Segment:
    """2 layers, 3 tokens, 1 head, 4 channels in bfloat16: 0, 1, 2 … 47, and a few odd values."""
    data = torch.arange(48, dtype=torch.float32).bfloat16().reshape(2, 2, 3, 1, 4).contiguous()
    data[0, 0, 0, 0, 0] = -0.0
    data[1, 1, 2, 0, 3] = float("inf")
    return Segment("0123456789" * 4, data, origin=17, token_digest="fedcba98" * 4)


def raw() -> bytes:
    return b"".join(dump(golden_segment(), FINGERPRINT))


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The golden file with another header, whose checksum is right."""
    file = raw()
    _, version, length, _ = struct.unpack_from("<8sIII", file)
    fields = json.loads(file[20 : 20 + length])
    change(fields)
    body = json.dumps(fields).encode()
    prefix = struct.pack("<8sIII", MAGIC, version, len(body), zlib.crc32(body))
    return prefix + body + file[20 + length :]


def test_golden_bytes() -> None:
    """Files of version 1 are read, and written bit for bit, by every release that knows it."""
    golden = GOLDEN.read_bytes()
    assert raw() == golden
    assert load(golden, expect_key="0123456789" * 4, expect_fingerprint=FINGERPRINT) == (
        golden_segment()
    )


def golden_segment_2() -> Segment:
    """2 layers, 3 tokens, 1 head, 4 channels in float16, somebody's."""
    data = torch.arange(48, dtype=torch.float32).sub(20).half().reshape(2, 2, 3, 1, 4).contiguous()
    return Segment("89abcdef01" * 4, data, origin=5, token_digest="76543210" * 4, owner=OWNER)


def test_golden_bytes_of_version_2() -> None:
    golden = GOLDEN_2.read_bytes()
    segment = golden_segment_2()
    assert b"".join(dump(segment, FINGERPRINT, StorageDtype.INT8)) == golden
    header = read_header(golden)
    assert (header.version, header.owner, header.storage) == (2, OWNER, "int8")
    assert (header.dtype, header.shape) == ("float16", (2, 2, 3, 1, 4))
    loaded = load(golden, expect_key=segment.key, expect_fingerprint=FINGERPRINT)
    assert loaded.owner == OWNER
    assert torch.equal(loaded.data, dequantize(quantize(segment.data, StorageDtype.INT8)))
    assert float((loaded.data - segment.data).abs().max()) <= 0.25
    tensors = safetensors.torch.load(golden[len(golden) - header.payload_bytes :])
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        "kv": [2, 2, 3, 1, 4],
        "key_scale": [2, 1, 1, 4],
        "value_scale": [2, 3, 1, 1],
    }


@pytest.mark.parametrize("storage", list(StorageDtype))
@pytest.mark.parametrize("owner", ["", OWNER])
@pytest.mark.field_fault(13)
def test_every_storage_dtype_comes_back_as_it_was_packed(storage: StorageDtype, owner: str) -> None:
    for n_tokens, head_dim in ((1, 2), (7, 6), (65, 40)):
        data = torch.randn(2, 2, n_tokens, 3, head_dim).bfloat16()
        segment = Segment("ab" * 20, data, 3, "d", owner)
        file = b"".join(dump(segment, "m", storage))
        assert read_header(file).version == (1 if storage == "as_cache" and not owner else 2)
        wanted = Segment("ab" * 20, dequantize(quantize(data, storage)), 3, "d", owner)
        assert load(file) == wanted
        assert load(bytearray(file)) == wanted


def test_every_flipped_byte_of_version_2_is_found() -> None:
    file = GOLDEN_2.read_bytes()
    for at in range(len(file)):
        for flip in (0x01, 0x03, 0x80):
            bad = bytearray(file)
            bad[at] ^= flip
            with pytest.raises(CorruptSegment):
                load(bad)


def test_the_header_says_what_is_in_the_file() -> None:
    header = read_header(raw()[:500])
    assert (header.key, header.fingerprint) == ("0123456789" * 4, FINGERPRINT)
    assert (header.origin, header.n_tokens, header.dtype) == (17, 3, "bfloat16")
    assert header.shape == (2, 2, 3, 1, 4)
    assert header.checksum.startswith("crc32:")


def test_the_payload_is_a_safetensors_file() -> None:
    file = raw()
    start = len(file) - read_header(file).payload_bytes
    tensors = safetensors.torch.load(file[start:])
    assert list(tensors) == ["kv"]
    assert torch.equal(tensors["kv"], golden_segment().data)


def test_the_tensor_starts_at_a_multiple_of_64_bytes() -> None:
    for n_tokens in (1, 5, 1000):
        pieces = dump(
            Segment("a" * 40, torch.zeros(1, 2, n_tokens, 1, 4), n_tokens**3, "d"), FINGERPRINT
        )
        assert len(pieces[0]) % 64 == 0


DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,
]


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 9)),
    st.sampled_from(DTYPES),
    st.integers(0, 2**40),
    st.text(max_size=20),
)
def test_round_trip(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, origin: int, fingerprint: str
) -> None:
    layer, token, kv_head, head_dim = sizes
    shape = (layer, 2, token, kv_head, head_dim * 4)
    data = torch.randint(0, 256, shape, dtype=torch.uint8).view(dtype)  # any bits, NaN too
    segment = Segment("ab" * 20, data, origin, "d")
    file = b"".join(dump(segment, fingerprint))
    assert load(file, expect_key=segment.key, expect_fingerprint=fingerprint) == segment
    assert load(file) == segment


def test_a_writable_buffer_is_used_in_place_and_nothing_is_copied() -> None:
    segment = golden_segment()
    pieces = dump(segment, FINGERPRINT)
    segment.data[0, 0, 0, 0, 0] = 5.0  # the last piece is a view of the tensor
    assert b"".join(pieces) != raw()
    buffer = bytearray(raw())
    loaded = load(buffer)
    buffer[-1] ^= 1
    assert loaded != golden_segment()
    kept = bytes(raw())
    assert load(kept).data.data_ptr() != load(kept).data.data_ptr()


def test_data_on_no_known_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="complex64 cannot be stored"):
        dump(Segment("a" * 40, torch.zeros(1, 2, 1, 1, 2, dtype=torch.complex64), 0, "d"), "f")


def test_every_flipped_byte_is_found() -> None:
    file = raw()
    for at in range(len(file)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(file)
            bad[at] ^= flip
            with pytest.raises(CorruptSegment):
                load(bad, expect_key="0123456789" * 4, expect_fingerprint=FINGERPRINT)


def test_every_truncation_is_found() -> None:
    file = raw()
    for length in range(len(file)):
        with pytest.raises(CorruptSegment, match="truncated"):
            load(file[:length])


def empty_file(storage: StorageDtype, shape: tuple[int, ...], **changes: Any) -> bytes:
    """A file of zeros whose checksums are right, whatever its header says."""
    specs = packed_specs(storage, torch.bfloat16, shape)
    payload = tensors_header(specs) + bytes(sum(spec.nbytes for spec in specs))
    fields = {
        "key": "a" * 40, "fingerprint": "m", "origin": 0, "n_tokens": shape[2],
        "token_digest": "d", "dtype": "bfloat16", "shape": shape,
        "checksum": f"crc32:{zlib.crc32(payload):08x}", "payload_bytes": len(payload),
        **({} if storage is StorageDtype.AS_CACHE else {"storage": storage.value}), **changes,
    }  # fmt: skip
    body = json.dumps(fields).encode()
    version = 2 if {"storage", "owner"} & fields.keys() else 1
    return struct.pack("<8sIII", MAGIC, version, len(body), zlib.crc32(body)) + body + payload


@pytest.mark.parametrize("storage", list(StorageDtype))
@pytest.mark.parametrize(
    "shape", [(2, 1, 3, 1, 4), (2, 3, 3, 1, 4), (2, 2, 0, 1, 4), (2, 2, 3, 1, 0), (0, 2, 3, 1, 4)]
)
def test_a_shape_that_is_no_segment_s_is_found(
    storage: StorageDtype, shape: tuple[int, ...]
) -> None:
    assert load(empty_file(storage, (2, 2, 3, 1, 4))).n_tokens == 3
    with pytest.raises(CorruptSegment, match="shape mismatch"):
        load(empty_file(storage, shape))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": 5},
        {"fingerprint": 5},
        {"token_digest": []},
        {"dtype": []},
        {"owner": 0},
        {"checksum": None},
    ],
)
def test_a_field_of_another_type_is_found(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptSegment, match="not a text"):
        load(empty_file(StorageDtype.AS_CACHE, (2, 2, 3, 1, 4), **changes))


def test_a_header_nested_too_deeply_is_found() -> None:
    body = b"[" * 100_000
    with pytest.raises(CorruptSegment, match="header not understood"):
        load(struct.pack("<8sIII", MAGIC, 1, len(body), zlib.crc32(body)) + body)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "truncated: 0 bytes"),
        (b"PK\x03\x04" + raw()[4:], "bad magic"),
        (raw()[:8] + struct.pack("<I", 3) + raw()[12:], "format version 3 is not supported"),
        (raw()[:8] + struct.pack("<I", 2) + raw()[12:], "version 2 has other fields"),
        (with_header(lambda h: h.update(owner="ab")), "version 1 has other fields"),
        (with_header(lambda h: h.update(owner="not hex")), "not understood"),
        (with_header(lambda h: h.update(owner=7)), "not understood"),
        (with_header(lambda h: h.update(storage="int3")), "not understood"),
        (raw() + b"x", "too long"),
        (raw()[:12] + b"\xff\xff\xff\xff" + raw()[16:], "truncated"),
        (with_header(lambda h: h.update(dtype="float16")), "shape mismatch"),
        (with_header(lambda h: h.update(dtype="complex64")), "dtype 'complex64'"),
        (with_header(lambda h: h.update(shape=[2, 2, 3, 4, 1])), "shape mismatch"),
        (with_header(lambda h: h.update(shape=[2, 2, 3, 4])), "shape mismatch"),
        (with_header(lambda h: h.update(shape=[10**30, 2, 3, 1, 4])), "shape mismatch"),
        (with_header(lambda h: h.update(shape=[2, 2, 0, 1, 4], n_tokens=0)), "shape mismatch"),
        (with_header(lambda h: h.update(shape=7)), "not understood"),
        (with_header(lambda h: h.update(n_tokens=4)), "shape mismatch"),
        (with_header(lambda h: h.update(origin=-1)), "not understood"),
        (with_header(lambda h: h.update(origin="17")), "not understood"),
        (with_header(lambda h: h.update(checksum="md5:00")), "checksum mismatch"),
        (with_header(lambda h: h.update(payload_bytes=10)), "too long"),
        (with_header(lambda h: h.pop("key")), "not understood"),
        (with_header(lambda h: h.update(more=1)), "not understood"),
    ],
)
def test_what_is_wrong_is_said(bad: bytes, message: str) -> None:
    with pytest.raises(CorruptSegment, match=message):
        load(bad)


@pytest.mark.field_fault(12)
def test_the_wrong_file_under_the_right_name() -> None:
    with pytest.raises(CorruptSegment, match=f"key mismatch: the file holds {'0123456789' * 4}"):
        load(raw(), expect_key="b" * 40)
    with pytest.raises(CorruptSegment, match=r"model mismatch.*'another'"):
        load(raw(), expect_fingerprint="another")
