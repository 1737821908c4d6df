"""The contract of a tier: a place where segments' KV lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment

__all__ = ["Tier", "TierStats"]


@dataclass(frozen=True, slots=True)
class TierStats:
    """What lies in a tier now, and what happened since it was opened.

    Args:
        name: ``host``, ``disk``, …
        segments: Segments in it.
        used_bytes: Bytes in it.
        capacity_bytes: The byte budget, ``None`` for no limit.
        hits: ``get`` calls that found their segment.
        misses: ``get`` calls that did not.
        puts: Segments stored.
        evictions: Segments dropped to make room.
        deletions: Segments dropped on demand.
        quarantined: Stored segments that failed their checks and were set aside.
        errors: Other failed reads and writes.
        wrong_key: Stored segments that were encrypted with another key, or with none, and were
            left alone.
        read_bytes: Bytes of the segments that were found, as they lie here.
        write_bytes: Bytes of the segments that were stored, as they lie here.
        read_seconds: Time spent in ``get`` calls that found their segment.
        write_seconds: Time spent in ``put`` calls that stored theirs.
    """

    name: str
    segments: int = 0
    used_bytes: int = 0
    capacity_bytes: int | None = None
    hits: int = 0
    misses: int = 0
    puts: int = 0
    evictions: int = 0
    deletions: int = 0
    quarantined: int = 0
    errors: int = 0
    wrong_key: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    read_seconds: float = 0.0
    write_seconds: float = 0.0

    def as_dict(self) -> dict[str, str | int | float | None]:
        """The same as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


class Tier(ABC):
    """Segments by key. All methods may be called from several threads at once.

    A tier may drop any segment at any time, except as its own documentation says: it is a cache,
    and what it lost is encoded again. It never answers with another segment than the one asked for,
    nor with a damaged one. Keys are 40 lower-case hex digits, as
    :func:`inferscale_sdk.kv.key.segment_key` makes them.
    """

    name: str = "tier"

    storage: StorageDtype = StorageDtype.AS_CACHE
    """How keys and values lie here. Anything but ``AS_CACHE`` gives back other numbers than were
    put in, so what comes from here may only go on to where that is known."""

    in_memory: bool = False
    """Whether it ends with this process, and nobody else reads it."""

    @abstractmethod
    def get(self, key: str) -> Segment | None:
        """The segment, or ``None`` if it is not there or cannot be read.

        Counts as a use for eviction. The caller must not write into the segment's tensor. It stays
        valid for as long as the caller holds it, even if the tier drops the segment meanwhile.
        Never raises for a missing or damaged segment.
        """

    @abstractmethod
    def put(self, segment: Segment) -> None:
        """Store a segment, replacing the one of the same key if there is one.

        When this returns, :meth:`get` finds it. The tier keeps the segment's tensor or a copy of
        it; the caller must not write into it afterwards. Other segments may be dropped for it.

        Raises:
            StoreFull: It does not fit into the budget or onto the device. Nothing has changed,
                except that other segments may have been dropped.
            StoreError: It could not be written for another reason.
        """

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Whether :meth:`get` would try to read it. Not a use, and no check of what is stored."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Drop a segment; true if it was there. When this returns, :meth:`get` gives ``None``.

        Raises:
            StoreError: It is there and cannot be removed.
        """

    def delete_everywhere(self, key: str) -> int:
        """Drop a segment under every model, rank and storage dtype that shares this tier's place.

        Returns:
            How many there were.

        Raises:
            StoreError: One is there and cannot be removed.
        """
        return int(self.delete(key))

    def locate(self, keys: Collection[str]) -> set[str]:
        """Which of ``keys`` lie here, as far as :meth:`delete_everywhere` reaches.

        Unlike :meth:`contains` it is a proof: what is left out is not here.

        Raises:
            StoreError: That cannot be found out now.
        """
        return {key for key in keys if self.contains(key)}

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """The keys at some moment during the call, each once, in no particular order."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes in use. Exact in memory, an estimate where other processes write too."""

    @property
    @abstractmethod
    def capacity_bytes(self) -> int | None:
        """The byte budget, ``None`` for no limit."""

    @abstractmethod
    def stats(self) -> TierStats:
        """Contents and counters. Cheap enough for every request."""

    @abstractmethod
    def clear(self) -> None:
        """Drop every segment. Counters stay."""

    def close(self) -> None:  # noqa: B027 - a tier without resources has nothing to release
        """Release resources. Twice is fine; no other method may be called afterwards."""

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.contains(key)

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
