"""Which items a partition has: an immutable list that several threads may hold on to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Roster"]


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Items of one partition, by ascending number.

    Args:
        items: Item numbers ``[item]``.
        n_terms: How many terms each has ``[item]``.
        fact_ids: Whose text each is ``[item]``.
    """

    items: NDArray[np.int64]
    n_terms: NDArray[np.int64]
    fact_ids: list[str]

    @classmethod
    def empty(cls) -> Roster:
        """No items."""
        import numpy as np

        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), [])

    def __len__(self) -> int:
        return len(self.items)

    def kept(self, items: NDArray[np.int64]) -> Roster:
        """Without what is not among ``items``."""
        import numpy as np

        stays = np.isin(self.items, items, assume_unique=True)
        if stays.all():
            return self
        fact_ids = [name for name, stay in zip(self.fact_ids, stays, strict=True) if stay]
        return Roster(self.items[stays], self.n_terms[stays], fact_ids)

    def with_rows(self, rows: Sequence[tuple[int, str, int]]) -> Roster:
        """With new items (number, fact id, number of terms), numbered above those here."""
        import numpy as np

        return Roster(
            np.concatenate([self.items, np.array([row[0] for row in rows], np.int64)]),
            np.concatenate([self.n_terms, np.array([row[2] for row in rows], np.int64)]),
            self.fact_ids + [row[1] for row in rows],
        )

    def rows(self, items: NDArray[np.int64]) -> NDArray[np.intp]:
        """Where these items stand; those of an older or newer snapshot are left out."""
        import numpy as np

        if not len(self.items):
            return np.zeros(0, np.intp)
        rows: NDArray[np.intp] = np.searchsorted(self.items, items)
        rows = np.minimum(rows, len(self.items) - 1)
        there: NDArray[np.intp] = rows[self.items[rows] == items]
        return there

    def named(
        self, items: NDArray[np.int64], scores: NDArray[np.float64]
    ) -> list[tuple[str, float]]:
        """Fact ids with scores. Every item must be one of these."""
        return [
            (self.fact_ids[row], float(score))
            for row, score in zip(self.rows(items), scores, strict=True)
        ]
