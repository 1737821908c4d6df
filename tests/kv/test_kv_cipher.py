"""Encrypted segments: round trip, every way not to open, nonces."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import ConfigurationError, CorruptSegment, WrongKey
from inferscale_sdk.kv.cipher import MAGIC, OVERHEAD_BYTES, Cipher, is_sealed

pytest.importorskip("cryptography")

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
NAME = f"0123456789abcdef/r0/ab/{'ab' * 20}.ifs"


def sealed(data: bytes = b"the segment", key: bytes = KEY) -> bytes:
    return b"".join(Cipher(key).seal([data[:4], memoryview(data[4:])], NAME))


def test_round_trip() -> None:
    for size in (0, 1, 1000, 300_000):
        data = bytes(i % 251 for i in range(size))
        box = sealed(data)
        assert is_sealed(box)
        assert len(box) == size + OVERHEAD_BYTES
        assert size < 16 or data not in box
        assert Cipher(KEY).open(box, NAME) == data


def test_the_layout_is_the_one_written_down() -> None:
    """Opened with the library's one-call form, from the offsets of the table."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    box = sealed()
    assert box[:8] == MAGIC == b"\x89IFSENC\n"
    assert int.from_bytes(box[8:12], "little") == 2
    assert box[12:20].hex() == Cipher(KEY).key_id
    plain = AESGCM(KEY).decrypt(box[20:32], box[32:], box[:32] + NAME.encode())
    assert plain == b"the segment"


def test_the_key_id_is_pinned() -> None:
    """It stands in files: another one would lose them all."""
    assert Cipher(KEY).key_id == "ec06aa462f3eea77"
    assert Cipher(OTHER).key_id != Cipher(KEY).key_id


def test_no_two_files_have_one_nonce() -> None:
    assert len({sealed()[20:32] for _ in range(200)}) == 200


def test_another_key_is_told_from_damage() -> None:
    with pytest.raises(WrongKey, match=f"key {Cipher(OTHER).key_id}, this store's"):
        Cipher(KEY).open(sealed(key=OTHER), NAME)
    with pytest.raises(WrongKey, match="not encrypted"):
        Cipher(KEY).open(b"\x89IFSKV\r\n and so on", NAME)


def test_every_flipped_byte_and_every_truncation_is_found() -> None:
    box = sealed()
    for at in range(len(box)):
        bad = bytearray(box)
        bad[at] ^= 0x40
        with pytest.raises((CorruptSegment, WrongKey)):
            Cipher(KEY).open(bad, NAME)
        with pytest.raises((CorruptSegment, WrongKey)):
            Cipher(KEY).open(box[:at], NAME)
    with pytest.raises(CorruptSegment):
        Cipher(KEY).open(box + b"x", NAME)


def test_a_sealed_file_does_not_open_under_another_name() -> None:
    for other in (NAME.replace("/r0/", "/r1/"), NAME.replace("ab", "cd"), ""):
        with pytest.raises(CorruptSegment, match="another place"):
            Cipher(KEY).open(sealed(), other)


def test_an_envelope_of_version_1_is_refused() -> None:
    """It was bound to the key alone, so another rank's could have taken its place."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key, nonce = "ab" * 20, bytes(12)
    prefix = MAGIC + (1).to_bytes(4, "little") + bytes.fromhex(Cipher(KEY).key_id) + nonce
    box = prefix + AESGCM(KEY).encrypt(nonce, b"the segment", prefix + key.encode())
    for name in (NAME, key):
        with pytest.raises(CorruptSegment, match="envelope version 1 is not supported"):
            Cipher(KEY).open(box, name)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_keys_have_32_bytes(length: int) -> None:
    with pytest.raises(ConfigurationError, match=f"this one {length}; make one with"):
        Cipher(bytes(length))
