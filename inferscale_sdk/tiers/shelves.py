"""How segments lie in memory: as they are, in fewer bytes, or in an arena.

A shelf is a mapping without a budget; who owns it says what stays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from inferscale_sdk.errors import CorruptSegment
from inferscale_sdk.kv.quantize import Packed, StorageDtype, dequantize, packed_specs, quantize
from inferscale_sdk.kv.rows import Lent
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.arena import Arena

__all__ = ["ArenaShelf", "PackedShelf", "PlainShelf", "Shelf", "make_shelf"]

Held = TypeVar("Held")


class Shelf(MutableMapping[str, Segment]):
    """Segments by key. Each is stored under its own key; setting another one is an error."""

    @abstractmethod
    def size_of(self, segment: Segment) -> int:
        """Bytes that ``segment`` takes on this shelf.

        Raises:
            CorruptSegment: It cannot be kept here.
        """

    def lend(self, key: str) -> Lent:
        """The segment, to be read before it is dropped. Unlike a look-up it need copy nothing."""
        return self[key]

    @contextmanager
    def lent(self, keys: Iterable[str]) -> Iterator[Mapping[str, Lent]]:
        """Several segments, to be read within the context and before anything else is stored.

        Raises:
            KeyError: One is not there.
        """
        yield {key: self.lend(key) for key in dict.fromkeys(keys)}

    def discard(self, key: str) -> bool:
        """Drop a segment; true if it was there. Unlike ``pop`` it restores nothing."""
        if key not in self:
            return False
        del self[key]
        return True


@dataclass(frozen=True, slots=True)
class _Placed(Generic[Held]):
    """A segment without its tensor, and where that is."""

    held: Held
    origin: int
    token_digest: str
    owner: str

    @classmethod
    def of(cls, segment: Segment, held: Held) -> _Placed[Held]:
        return cls(held, segment.origin, segment.token_digest, segment.owner)

    def segment(self, key: str, data: torch.Tensor) -> Segment:
        return Segment(key, data, self.origin, self.token_digest, self.owner)


class _KeptShelf(Shelf, Generic[Held]):
    """Base: one dictionary of what is kept in place of each segment."""

    def __init__(self) -> None:
        self._kept: dict[str, Held] = {}

    @abstractmethod
    def _keep(self, segment: Segment) -> Held:
        """What is kept of a segment."""

    @abstractmethod
    def _restore(self, key: str, kept: Held) -> Segment:
        """The segment again."""

    def _let_go(self, kept: Held) -> None:
        """It is not kept any more."""

    def __getitem__(self, key: str) -> Segment:
        return self._restore(key, self._kept[key])

    def __setitem__(self, key: str, segment: Segment) -> None:
        if key != segment.key:
            raise ValueError(f"segment {segment.key} cannot be stored as {key}")
        self.discard(key)
        self._kept[key] = self._keep(segment)

    def __delitem__(self, key: str) -> None:
        self._let_go(self._kept.pop(key))

    def clear(self) -> None:
        """Drop every segment."""
        for key in list(self._kept):
            del self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class PlainShelf(_KeptShelf[Segment]):
    """Segments as they are, each in memory of its own."""

    def size_of(self, segment: Segment) -> int:  # noqa: D102
        return segment.nbytes

    def _keep(self, segment: Segment) -> Segment:
        return segment

    def _restore(self, key: str, kept: Segment) -> Segment:
        return kept


class PackedShelf(_KeptShelf[_Placed[Packed]]):
    """Segments in a storage dtype; every look-up restores one.

    Setting a segment that cannot be kept so raises
    :class:`~inferscale_sdk.errors.CorruptSegment`.

    Args:
        storage: The storage dtype.
    """

    def __init__(self, storage: StorageDtype) -> None:
        super().__init__()
        self._storage = storage

    def size_of(self, segment: Segment) -> int:  # noqa: D102
        try:
            specs = packed_specs(self._storage, segment.data.dtype, segment.data.shape)
        except ValueError as error:
            raise CorruptSegment(f"segment {segment.key}: {error}") from None
        return sum(spec.nbytes for spec in specs)

    def _keep(self, segment: Segment) -> _Placed[Packed]:
        try:
            return _Placed.of(segment, quantize(segment.data, self._storage))
        except ValueError as error:
            raise CorruptSegment(f"segment {segment.key}: {error}") from None

    def _restore(self, key: str, kept: _Placed[Packed]) -> Segment:
        return kept.segment(key, dequantize(kept.held))


class ArenaShelf(_KeptShelf[_Placed[torch.Tensor]]):
    """Segments in an arena; every look-up copies one out of it, and lending does not.

    Setting a segment raises :class:`~inferscale_sdk.errors.StoreFull` if there are too few free
    slots, and :class:`~inferscale_sdk.errors.CorruptSegment` if it has another layout.

    Args:
        arena: Where they lie; this shelf's alone.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena

    def size_of(self, segment: Segment) -> int:  # noqa: D102
        self.arena.layout.check(segment.data)
        return segment.n_tokens * self.arena.layout.bytes_per_token

    def _keep(self, segment: Segment) -> _Placed[torch.Tensor]:
        return _Placed.of(segment, self.arena.store(segment.data))

    def _restore(self, key: str, kept: _Placed[torch.Tensor]) -> Segment:
        return kept.segment(key, self.arena.load(kept.held))

    def lend(self, key: str) -> Lent:  # noqa: D102
        kept = self._kept[key]
        return self.arena.rows(kept.held, kept.origin)

    def _let_go(self, kept: _Placed[torch.Tensor]) -> None:
        self.arena.free(kept.held)


def make_shelf(storage: StorageDtype) -> Shelf:
    """A shelf for segments in that storage dtype, each in memory of its own."""
    return PlainShelf() if storage is StorageDtype.AS_CACHE else PackedShelf(storage)
