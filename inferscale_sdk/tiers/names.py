"""What segments are called where they lie, on disk and remote."""

from __future__ import annotations

import hashlib
import re

__all__ = ["SUFFIX", "is_key", "key_of", "object_name", "shard_name"]

SUFFIX = ".ifs"
_KEY = re.compile(r"[0-9a-f]{40}")


def is_key(text: object) -> bool:
    """Whether it is 40 lower-case hex digits."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def shard_name(fingerprint: str, rank: int, suffix: str = "") -> str:
    """The part of a path that tells models, ranks and storage dtypes apart."""
    # A digest, because a fingerprint is any text and a folder's name is not.
    model = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
    return f"{model}/r{rank}{suffix}"


def object_name(shard: str, key: str) -> str:
    """A segment's path within its store.

    Raises:
        ValueError: ``key`` is not 40 lower-case hex digits.
    """
    if not is_key(key):
        raise ValueError(f"key {str(key)[:80]!r} is not 40 lower-case hex digits")
    return f"{shard}/{key[:2]}/{key}{SUFFIX}"


def key_of(name: str) -> str | None:
    """The key in a path or a file's name; ``None`` if it is no segment's."""
    base = name.rpartition("/")[2]
    key = base.removesuffix(SUFFIX)
    return key if base != key and is_key(key) else None
