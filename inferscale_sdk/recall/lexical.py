"""BM25 over the partitions of one search, on postings kept by SQLite's FTS5.

FTS5's own ``bm25()`` counts over the whole table, so that what one user writes would move another
user's ranking, and its cost would grow with all users' postings. Here every term carries the
number of its partition (``12_coffee``): a look-up reads the postings of that partition and no
others, and the sums are made from the counts of the partitions that the scope covers. Facts are
short, so a term counts once per fact; a fact's length still counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferscale_sdk.recall.catalog import read_integers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferscale_sdk.recall.roster import Roster

__all__ = ["LexicalIndex", "Matches", "mark", "rank"]

K1 = 1.2
B = 0.75
_DIGITS = 9  # sums in another order still tie


def mark(partition_pk: int, term: str) -> str:
    """The term as it stands in the lexicon: bound to its partition."""
    return f"{partition_pk}_{term}"


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Where the terms of a question occur in one partition.

    Args:
        roster: The partition's items.
        rows: For each term, the rows of the roster that have it ``[match]``.
        allowed: Item numbers that may be found, ``None`` for all. The others still count.
    """

    roster: Roster
    rows: tuple[NDArray[np.intp], ...]
    allowed: NDArray[np.int64] | None


class LexicalIndex:
    """The postings of one partition.

    Args:
        partition_pk: The partition.
        roster: Its items.
    """

    def __init__(self, partition_pk: int, roster: Roster) -> None:
        self._partition_pk = partition_pk
        self._roster = roster

    def matches(
        self,
        connection: sqlite3.Connection,
        terms: Sequence[str],
        allowed: NDArray[np.int64] | None,
    ) -> Matches:
        """Look up distinct terms, in a read transaction."""
        rows = (self._roster.rows(self._postings(connection, term)) for term in terms)
        return Matches(self._roster, tuple(rows), allowed)

    def _postings(self, connection: sqlite3.Connection, term: str) -> NDArray[np.int64]:
        # A term holds letters, digits and marks only, so that quoting it is all there is to do.
        return read_integers(
            connection,
            "SELECT rowid FROM lexicon WHERE lexicon MATCH ?",
            (f'"{mark(self._partition_pk, term)}"',),
        )


def rank(
    matches: Sequence[Matches], k: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Score the items that have at least one of the terms.

    Args:
        matches: Of all partitions of the search, for the same terms.
        k: How many to keep of each partition; more are kept if the last ones tie.

    Yields:
        For each partition, item numbers ``[hit]`` and scores ``[hit]``, best first.
    """
    import numpy as np

    total = sum(len(m.roster) for m in matches)
    mean = sum(int(m.roster.n_terms.sum()) for m in matches) / max(total, 1)
    having = np.array([[len(rows) for rows in m.rows] for m in matches]).sum(axis=0)
    weights = (K1 + 1.0) * np.log1p((total - having + 0.5) / (having + 0.5))  # [term]
    for m in matches:
        scores = np.zeros(len(m.roster))
        length = K1 * (1.0 - B + B * m.roster.n_terms / max(mean, 1.0))
        for weight, rows in zip(weights, m.rows, strict=True):
            scores[rows] += weight / (1.0 + length[rows])
        if m.allowed is not None:
            scores[~np.isin(m.roster.items, m.allowed, assume_unique=True)] = 0.0
        yield _top(m.roster.items, scores.round(_DIGITS), k)


def _top(
    items: NDArray[np.int64], scores: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    import numpy as np

    found = np.flatnonzero(scores > 0.0)
    if len(found) > k:
        last = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= last]
    found = found[np.argsort(-scores[found], kind="stable")]
    return items[found], scores[found]
