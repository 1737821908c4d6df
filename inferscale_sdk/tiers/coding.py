"""From segments to the bytes that lie on disk or remote, and back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from inferscale_sdk.errors import ConfigurationError, CorruptSegment, WrongKey
from inferscale_sdk.kv.cipher import Cipher, is_sealed
from inferscale_sdk.kv.codec import Buffer, dump, load, read_header
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.names import object_name, shard_name

__all__ = ["HEAD_BYTES", "Coder", "Tag"]

logger = logging.getLogger(__name__)

HEAD_BYTES = 4096
"""So many first bytes of a file hold its header, if it is not encrypted."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What eviction wants to know of a segment.

    Args:
        owner: Whose budget it counts against.
        cost: What having it again costs, in tokens to compute.
    """

    owner: str = ""
    cost: float = 0.0


class Coder:
    """One model's segments as bytes: storage dtype, checksums, encryption.

    Args:
        fingerprint: The model whose segments these are.
        storage: How keys and values are stored. Stores of different storage dtypes never share
            an address, see :attr:`suffix`.
        cipher: Encrypts; ``None`` stores plain. With one, plain segments are not read either:
            anybody could have put them there.
        division: How the model is divided over ranks, e.g. ``tp2pp1``; empty if it is not. A rank
            has other heads in another division, often in the same shape.
        rank: Whose share of the model the segments are.

    Raises:
        ConfigurationError: ``rank`` is negative.
    """

    def __init__(
        self,
        fingerprint: str,
        storage: StorageDtype = StorageDtype.AS_CACHE,
        cipher: Cipher | None = None,
        division: str = "",
        rank: int = 0,
    ) -> None:
        if rank < 0:
            raise ConfigurationError(f"rank={rank} must not be negative; ranks count from 0")
        self.fingerprint = fingerprint
        self._storage = storage
        self._cipher = cipher
        # A key says nothing of division and storage dtype.
        lossy = "" if storage is StorageDtype.AS_CACHE else storage.value
        suffix = "".join(f"-{part}" for part in (division, lossy) if part)
        self.shard = shard_name(fingerprint, rank, suffix)
        """Where these segments lie in a store, see :mod:`inferscale_sdk.tiers.names`."""

    def encode(self, segment: Segment) -> Sequence[Buffer]:
        """The segment's bytes in pieces. Numbers that cannot be stored in fewer bytes stay."""
        try:
            pieces: Sequence[Buffer] = dump(segment, self.fingerprint, self._storage)
        except ValueError as error:
            logger.debug("segment %s is stored as it is: %s", segment.key, error)
            pieces = dump(segment, self.fingerprint)
        if self._cipher is None:
            return pieces
        return self._cipher.seal(pieces, object_name(self.shard, segment.key))

    def decode(self, buffer: Buffer, key: str) -> Segment:
        """The segment in a file found under ``key``.

        Args:
            buffer: The whole file; used in place if it is writable.
            key: Where it was found.

        Raises:
            WrongKey: It is encrypted with another key, or not as it should be.
            CorruptSegment: It fails a check, or is another segment, or another model's or, if it is
            encrypted, another rank's.
        """
        plain = self._plain(buffer, key)
        header = read_header(plain)
        if header.storage not in (self._storage, StorageDtype.AS_CACHE):
            raise CorruptSegment(
                f"storage mismatch: the file is stored as {header.storage}, "
                f"this store keeps {self._storage}"
            )
        return load(plain, expect_key=key, expect_fingerprint=self.fingerprint)

    def tag(self, buffer: Buffer, key: str) -> Tag:
        """What eviction wants to know, of a file or its first :data:`HEAD_BYTES`.

        Raises:
            WrongKey: As for :meth:`decode`.
            CorruptSegment: The header is damaged, or the file is encrypted and not whole.
        """
        header = read_header(self._plain(buffer, key))
        return Tag(header.owner, header.origin + header.n_tokens)

    @property
    def head_bytes(self) -> int | None:
        """How much of a file :meth:`tag` needs; ``None`` for all of it."""
        return HEAD_BYTES if self._cipher is None else None

    def _plain(self, buffer: Buffer, key: str) -> Buffer:
        if self._cipher is not None:
            return self._cipher.open(buffer, object_name(self.shard, key))
        if is_sealed(buffer):
            raise WrongKey(
                "the segment is encrypted and this process has no key; set INFERSCALE_KV_KEY"
            )
        return buffer
