r"""Segments encrypted at rest.

    offset  bytes  content
    0       8      magic  b"\x89IFSENC\n"
    8       4      envelope version, uint32 little-endian
    12      8      key id: which key sealed it
    20      12     nonce, random
    32      n      the file as :mod:`inferscale_sdk.kv.codec` writes it, AES-256-GCM
    32+n    16     authentication tag

The tag covers the envelope's first 32 bytes and the name of the segment's place within its store:
model, rank, division, storage dtype and key (:func:`inferscale_sdk.tiers.names.object_name`). A
sealed file put into another place, also that of another rank, does not open. Whoever lacks the key
can neither read a segment nor make one.

Version 1 was bound to the key alone; it is not read any more.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError, CorruptSegment, MissingDependency, WrongKey

if TYPE_CHECKING:
    from inferscale_sdk.kv.codec import Buffer

__all__ = ["KEY_BYTES", "MAGIC", "Cipher", "configured_cipher", "is_sealed"]

MAGIC = b"\x89IFSENC\n"
ENVELOPE_VERSION = 2
KEY_BYTES = 32
_PREFIX = struct.Struct("<8sI8s12s")
_TAG_BYTES = 16
_CHUNK = 1 << 26  # the library takes less than 2 GiB in one call

OVERHEAD_BYTES = _PREFIX.size + _TAG_BYTES
"""Bytes that sealing adds."""


def is_sealed(buffer: Buffer) -> bool:
    """Whether these are the bytes of an encrypted segment, or their beginning."""
    return bytes(memoryview(buffer)[: len(MAGIC)]) == MAGIC


class Cipher:
    """Seals and opens segments' files with one key. Safe for several threads.

    Args:
        key: 32 random bytes.

    Raises:
        ConfigurationError: The key has another length.
        MissingDependency: The package ``cryptography`` is not installed.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(
                f"an encryption key has {KEY_BYTES} bytes, this one {len(key)}; "
                "make one with: openssl rand -base64 32"
            )
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers import Cipher as Algorithm
            from cryptography.hazmat.primitives.ciphers import algorithms, modes
        except ImportError:
            raise MissingDependency("cryptography", "encryption", "encrypted segments") from None
        self._bad_tag: type[Exception] = InvalidTag
        aes = algorithms.AES(key)
        self._gcm: Callable[..., Any] = lambda *given: Algorithm(aes, modes.GCM(*given))
        self._id = hashlib.blake2b(key, digest_size=8, person=b"ifs-kv-key-id").digest()

    @property
    def key_id(self) -> str:
        """A digest of the key that tells keys apart and gives none away, 16 hex digits."""
        return self._id.hex()

    def seal(self, pieces: Sequence[Buffer], name: str) -> list[bytes]:
        """Encrypt a file.

        Args:
            pieces: Its bytes.
            name: Of its place in the store; it opens under no other.

        Returns:
            The sealed file's bytes in pieces.
        """
        nonce = secrets.token_bytes(12)
        prefix = _PREFIX.pack(MAGIC, ENVELOPE_VERSION, self._id, nonce)
        encryptor = self._gcm(nonce).encryptor()
        encryptor.authenticate_additional_data(prefix + name.encode())
        sealed = [prefix]
        for piece in pieces:
            view = memoryview(piece)
            sealed += [encryptor.update(view[at : at + _CHUNK]) for at in _steps(view)]
        sealed += [encryptor.finalize(), encryptor.tag]
        return sealed

    def open(self, buffer: Buffer, name: str) -> bytearray:
        """Decrypt a file.

        Args:
            buffer: The whole sealed file.
            name: Of the place where it was found.

        Raises:
            WrongKey: It was sealed with another key, or not at all: anybody could have made it.
            CorruptSegment: It is truncated, has another envelope version, or does not open.
        """
        if not is_sealed(buffer):
            raise WrongKey("the segment is not encrypted, and this store takes encrypted ones only")
        view = memoryview(buffer)
        if len(view) < OVERHEAD_BYTES:
            raise CorruptSegment(f"truncated: {len(view)} bytes, an envelope has {OVERHEAD_BYTES}")
        _, version, key_id, nonce = _PREFIX.unpack_from(view)
        if version != ENVELOPE_VERSION:
            raise CorruptSegment(
                f"envelope version {version} is not supported; "
                f"this release reads {ENVELOPE_VERSION}"
            )
        if key_id != self._id:
            raise WrongKey(
                f"the segment was encrypted with key {key_id.hex()}, this store's is {self.key_id}"
            )
        decryptor = self._gcm(nonce, bytes(view[-_TAG_BYTES:])).decryptor()
        decryptor.authenticate_additional_data(bytes(view[: _PREFIX.size]) + name.encode())
        body = view[_PREFIX.size : -_TAG_BYTES]
        opened = bytearray()
        for at in _steps(body):
            opened += decryptor.update(body[at : at + _CHUNK])
        try:
            decryptor.finalize()
        except self._bad_tag:
            raise CorruptSegment(
                "the encrypted segment is damaged, forged, or was sealed for another place (key, "
                "model or rank): its tag is wrong"
            ) from None
        return opened


def _steps(view: memoryview) -> range:
    return range(0, len(view), _CHUNK)


def configured_cipher() -> Cipher | None:
    """The cipher of the key in the settings (``INFERSCALE_KV_KEY``), ``None`` without one.

    Raises:
        MissingDependency: There is a key, and the package ``cryptography`` is not installed.
    """
    key = settings().kv_key
    return None if key is None else Cipher(key)
