"""BM25 over one partition, on postings kept by SQLite's FTS5.

FTS5's own ``bm25()`` counts over the whole table, so that what one user writes would move another
user's ranking, and its cost would grow with all users' postings. Here every term carries the
number of its partition (``12_coffee``): a look-up reads the postings of that partition and no
others, and the sums are made from the partition's own counts. Facts are short, so a term counts
once per fact; a fact's length still counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferscale_sdk.recall.catalog import read_integers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LexicalIndex", "mark"]

K1 = 1.2
B = 0.75


def mark(partition_pk: int, term: str) -> str:
    """The term as it stands in the lexicon: bound to its partition."""
    return f"{partition_pk}_{term}"


class LexicalIndex:
    """Scores the items of one partition.

    Args:
        partition_pk: The partition.
        items: Numbers of all its items ``[item]``, ascending.
        n_terms: How many terms each has ``[item]``.
    """

    def __init__(
        self, partition_pk: int, items: NDArray[np.int64], n_terms: NDArray[np.int64]
    ) -> None:
        self._partition_pk = partition_pk
        self._items = items
        mean = float(n_terms.mean()) if len(n_terms) else 1.0
        # The part of BM25's denominator that does not depend on the question.
        self._length = K1 * (1.0 - B + B * n_terms / max(mean, 1.0))

    def search(
        self,
        connection: sqlite3.Connection,
        terms: Sequence[str],
        k: int,
        allowed: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best items that have at least one of the terms, best first.

        Args:
            connection: In a read transaction.
            terms: Distinct terms of the question.
            k: How many; more come back if the last ones tie.
            allowed: Ascending item numbers to choose from, ``None`` for all.

        Returns:
            Item numbers ``[hit]`` and scores ``[hit]``.
        """
        import numpy as np

        scores = np.zeros(len(self._items))
        for term in terms:
            rows = self._rows(self._postings(connection, term))
            total, having = len(self._items), len(rows)
            weight = np.log1p((total - having + 0.5) / (having + 0.5))
            scores[rows] += weight * (K1 + 1.0) / (1.0 + self._length[rows])
        if allowed is not None:
            scores[~np.isin(self._items, allowed, assume_unique=True)] = 0.0
        scores = scores.round(9)  # sums in another order still tie
        found = np.flatnonzero(scores > 0.0)
        if len(found) > k:
            last = np.partition(scores[found], len(found) - k)[len(found) - k]
            found = found[scores[found] >= last]
        found = found[np.argsort(-scores[found], kind="stable")]
        return self._items[found], scores[found]

    def _rows(self, items: NDArray[np.int64]) -> NDArray[np.intp]:
        """Where these items stand; an item of an older or newer snapshot is left out."""
        import numpy as np

        if not len(self._items):
            return np.zeros(0, np.intp)
        rows: NDArray[np.intp] = np.searchsorted(self._items, items)
        rows = np.minimum(rows, len(self._items) - 1)
        there: NDArray[np.intp] = rows[self._items[rows] == items]
        return there

    def _postings(self, connection: sqlite3.Connection, term: str) -> NDArray[np.int64]:
        # A term holds letters, digits and marks only, so that quoting it is all there is to do.
        return read_integers(
            connection,
            "SELECT rowid FROM lexicon WHERE lexicon MATCH ?",
            (f'"{mark(self._partition_pk, term)}"',),
        )
