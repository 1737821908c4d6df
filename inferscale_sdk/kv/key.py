"""Content addresses. Same inputs give the same key in every process and on every rank."""

from __future__ import annotations

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence

__all__ = [
    "FORMAT_VERSION",
    "UNOWNED",
    "namespace_secret",
    "owner_tag",
    "segment_key",
    "token_digest",
]

FORMAT_VERSION = 1
KEY_HEX_DIGITS = 40


def _pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32, the only byte form that is ever hashed."""
    packed = array("I", token_ids)
    if packed.itemsize != 4:  # pragma: no cover - no such platform is supported
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    import sys

    if sys.byteorder == "big":  # pragma: no cover
        packed.byteswap()
    return packed.tobytes()


def token_digest(token_ids: Sequence[int]) -> str:
    """Digest of a run of token ids, 32 hex digits."""
    return hashlib.blake2b(_pack(token_ids), digest_size=16).hexdigest()


def namespace_secret(store_secret: bytes, partition: str) -> bytes:
    """Derive the secret of one isolation domain from the store's secret (32 bytes)."""
    return hmac.new(store_secret, b"ifs-namespace\0" + partition.encode(), hashlib.sha256).digest()


def owner_tag(secret: bytes) -> str:
    """What a server may know an isolation domain by, to keep its budget: 32 hex digits.

    Args:
        secret: The namespace's secret, see :func:`namespace_secret`. The tag gives none of it
            away, and cannot be guessed from names.
    """
    return hashlib.blake2b(key=secret, digest_size=16, person=b"ifs-owner-v1").hexdigest()


UNOWNED = hashlib.blake2b(b"unowned preambles", digest_size=16, person=b"ifs-owner-v1").hexdigest()
"""The owner of preambles that were learnt for requests which name none: one budget for them all."""


def segment_key(
    *,
    fingerprint: str,
    frame_version: str,
    secret: bytes,
    context_ids: Sequence[int],
    own_ids: Sequence[int],
    adapter: str = "",
    storage_dtype: str = "auto",
    reading: str = "",
) -> str:
    """The key of a segment: a keyed digest of everything its KV depends on.

    Args:
        fingerprint: The model, as the server names it.
        frame_version: The frame whose text surrounds the fact.
        secret: The namespace's secret, so that keys cannot be guessed across namespaces.
        context_ids: All tokens before the segment when it was encoded (header and window).
        own_ids: The segment's own tokens.
        adapter: LoRA name and weights digest, empty without one.
        storage_dtype: Dtype at rest, ``auto`` for the cache's own.
        reading: For the first of two readings ``first`` and whose, for the mean the first one's
            name; empty where a fact is read once.

    Returns:
        40 lower-case hex digits.
    """
    digest = hashlib.blake2b(key=secret, digest_size=KEY_HEX_DIGITS // 2, person=b"ifs-segment-v1")
    for part in (str(FORMAT_VERSION), fingerprint, frame_version, adapter, storage_dtype):
        raw = part.encode()
        digest.update(struct.pack("<Q", len(raw)) + raw)
    for ids in (context_ids, own_ids):
        digest.update(struct.pack("<Q", len(ids)) + _pack(ids))
    if reading:
        digest.update(b"reading\0" + reading.encode())
    return digest.hexdigest()
