"""The index on one SQLite file: keeping it, and gathering what a search may return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall import catalog
from inferscale_sdk.recall.base import Embedder, Hit, RecallIndex, RecallQuery
from inferscale_sdk.recall.lexical import Matches, mark, rank
from inferscale_sdk.recall.migrations import RECALL_SCHEMA
from inferscale_sdk.recall.terms import question_terms
from inferscale_sdk.recall.vectors import VectorSource
from inferscale_sdk.recall.views import PartitionView, ViewCache
from inferscale_sdk.sqlite.clauses import check_count, check_owner, time_clause
from inferscale_sdk.sqlite.database import Database
from inferscale_sdk.sqlite.filters import filter_clause
from inferscale_sdk.types import Fact

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CACHE_BYTES", "Found", "SQLiteRecall", "hits"]

CACHE_BYTES = 512 * 2**20
_BATCH = 256
_FILL_ROUNDS = 3

Ranking = list[tuple[str, float]]


@dataclass(slots=True)
class Found:
    """What the searches of one query brought, each ranking best first.

    Args:
        dense: Fact ids with cosine similarity.
        lexical: Fact ids with BM25 score.
        similarity: Cosine of every fact in either ranking that has a vector.
    """

    dense: Ranking = field(default_factory=list)
    lexical: Ranking = field(default_factory=list)
    similarity: dict[str, float] = field(default_factory=dict)


class SQLiteRecall(RecallIndex):
    """Base of the indexes on one file; subclasses say how to rank.

    Any of them may open a file another one made: text and terms are always kept, vectors that are
    missing are made on the first search that needs them.

    Args:
        path: The file, made private if it is absent; ``:memory:`` for one that dies with this.
        embedder: Makes the vectors; ``None`` to do without.
        uses_terms: Whether searches look at terms.
        cache_bytes: Memory for vectors of the partitions used last.
        on_mismatch: What to do if the file's vectors are of another embedder: ``raise``, or
            ``reembed`` to drop them all and make each partition's anew when it is next searched.

    Raises:
        ConfigurationError: The file is not a recall index, or its vectors are of another embedder.
        StoreError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        embedder: Embedder | None,
        *,
        uses_terms: bool,
        cache_bytes: int,
        on_mismatch: Literal["raise", "reembed"],
    ) -> None:
        if on_mismatch not in ("raise", "reembed"):
            raise ConfigurationError(f"on_mismatch={on_mismatch!r}; use 'raise' or 'reembed'")
        self._vectors = None if embedder is None else VectorSource(embedder)
        self._uses_terms = uses_terms
        self._cache_bytes = check_count(cache_bytes, "cache_bytes")
        self._cache: ViewCache | None = None
        # NORMAL: what a power cut takes is made again from the fact store, cursor included.
        self._db = Database(
            path,
            RECALL_SCHEMA,
            synchronous="NORMAL",
            if_damaged="delete it, it is made again from the facts",
        )
        try:
            if self._vectors is not None:
                self._vectors.open(self._db, reembed=on_mismatch == "reembed")
        except BaseException:
            self._db.close()
            raise

    # -- keeping ---------------------------------------------------------------------------

    def upsert(self, facts: Sequence[Fact]) -> None:
        """Index these versions; older versions than the stored one, and stored ones, are skipped.

        Embedding runs outside of any lock. Softly deleted facts are removed.
        """
        latest: dict[str, Fact] = {}
        for fact in facts:
            if fact.id not in latest or fact.version > latest[fact.id].version:
                latest[fact.id] = fact
        items = [catalog.Item.of(fact) for fact in latest.values() if fact.deleted_at is None]
        for start in range(0, len(items), _BATCH):
            self._put(items[start : start + _BATCH])
        self.remove([fact.id for fact in latest.values() if fact.deleted_at is not None])

    def remove(self, fact_ids: Sequence[str]) -> None:
        """Drop facts; their words are gone from the file when this returns."""
        if not fact_ids:
            return
        with self._db.write() as connection:
            removed = catalog.remove(connection, fact_ids)
        if removed:
            self._db.scrub()

    def cursor(self) -> int:
        """See :meth:`RecallIndex.cursor`; 0 for a new file."""
        with self._db.read() as connection:
            return int(catalog.get_state(connection, "cursor") or 0)

    def set_cursor(self, seq: int, mark: str = "") -> None:
        """See :meth:`RecallIndex.set_cursor`."""
        check_count(seq, "seq")
        with self._db.write() as connection:
            catalog.set_state(connection, "cursor", seq)
            catalog.set_state(connection, "mark", mark)

    def place(self) -> tuple[int, str]:
        """See :meth:`RecallIndex.place`."""
        with self._db.read() as connection:
            cursor = int(catalog.get_state(connection, "cursor") or 0)
            return cursor, str(catalog.get_state(connection, "mark") or "")

    def restart(self, stale: str, mark: str) -> bool:
        """See :meth:`RecallIndex.restart`; the words are gone from the file when this returns."""
        with self._db.write() as connection:
            if str(catalog.get_state(connection, "mark") or "") != stale:
                return False
            catalog.clear(connection)
            catalog.set_state(connection, "cursor", 0)
            catalog.set_state(connection, "mark", mark)
        self._db.scrub()
        return True

    def close(self) -> None:
        """Release the file and the memory."""
        self._db.close()
        if self._cache is not None:
            self._cache.clear()

    def _put(self, items: list[catalog.Item]) -> None:
        with self._db.read() as connection:
            known = catalog.stored(connection, [item.fact_id for item in items])
        fresh = [item for item in items if self._is_news(item, known.get(item.fact_id))]
        if not fresh:
            return
        if self._vectors is not None:
            fresh = self._vectors.embed_items(fresh, known)
        with self._db.write() as connection:
            if self._vectors is not None:
                self._vectors.claim(connection)
            catalog.put(connection, fresh, mark)

    def _is_news(self, item: catalog.Item, known: catalog.Stored | None) -> bool:
        if known is None or item.version > known.version:
            return True
        lacks_vector = known.vector is None and self._vectors is not None
        return item.version == known.version and lacks_vector

    # -- searching -------------------------------------------------------------------------

    def _gather(self, query: RecallQuery, depth: int) -> Found:
        """The best ``depth`` facts of each search, from all partitions the scope covers.

        Raises:
            NamespaceError: The scope is empty.
            ConfigurationError: ``top_k``, a filter or a time is malformed.
        """
        check_owner(query.scope, "scope")
        check_count(query.top_k, "top_k", least=1)
        filter_clause(query.filters, "item.metadata")
        time_clause("item.time_us", query.since, query.until)
        text = query.text
        if not text.strip():
            return Found()
        vector = None if self._vectors is None else self._vectors.embed_query(text)
        terms = question_terms(text) if self._uses_terms else []
        for last_round in (False,) * _FILL_ROUNDS + (True,):
            found, lacking = self._look(query, vector, terms, depth)
            if not lacking or last_round:
                break
            assert self._vectors is not None
            self._vectors.fill(self._db, lacking, _BATCH)
        found.dense = _best(found.dense, depth)
        found.lexical = _best(found.lexical, depth)
        return found

    def _look(
        self, query: RecallQuery, vector: NDArray[np.float32] | None, terms: list[str], depth: int
    ) -> tuple[Found, list[int]]:
        """One pass in one snapshot; also the partitions in which vectors are missing."""
        cache = self._views(None if vector is None else len(vector))
        found, lacking = Found(), []
        looked: list[tuple[PartitionView, Matches]] = []
        with self._db.read() as connection:
            if self._vectors is not None:
                self._vectors.check(connection)
            for partition in catalog.partitions(connection, query.scope):
                view = cache.get(partition.pk)
                with view.lock:
                    view.refresh(connection, partition)
                    if view.lacks_vectors:
                        lacking.append(partition.pk)
                    allowed = catalog.allowed_items(connection, partition, query)
                    looked.append((view, view.lexical.matches(connection, terms, allowed)))
                    if view.dense is not None and vector is not None:
                        items, scores = view.dense.search(vector, depth, allowed)
                        found.dense += view.roster.named(items, scores)
        found.similarity.update(found.dense)
        _rank_terms(looked, vector, depth, found)
        cache.trim()
        return found, lacking

    def _views(self, dim: int | None) -> ViewCache:
        if self._cache is None:
            self._cache = ViewCache(self._cache_bytes, dim)
        return self._cache


def _rank_terms(
    looked: list[tuple[PartitionView, Matches]],
    vector: NDArray[np.float32] | None,
    depth: int,
    found: Found,
) -> None:
    """Add the lexical ranking, and the cosines of what only it has found."""
    ranked = rank([matches for _, matches in looked], depth)
    for (view, matches), (items, scores) in zip(looked, ranked, strict=True):
        found.lexical += matches.roster.named(items, scores)
        if vector is not None:
            with view.lock:
                if view.dense is not None:
                    cosines = view.dense.similarities(vector, items)
                    found.similarity.update(view.roster.named(*cosines))


def _best(ranking: Ranking, depth: int) -> Ranking:
    return sorted(ranking, key=lambda entry: (-entry[1], entry[0]))[:depth]


def hits(scores: dict[str, float], found: Found, query: RecallQuery) -> list[Hit]:
    """The answer to a query: above the threshold, best first, ties by fact id."""
    ranked = [
        Hit(fact_id, score, found.similarity.get(fact_id))
        for fact_id, score in _best(list(scores.items()), len(scores))
    ]
    if query.threshold is not None:
        least = query.threshold
        ranked = [hit for hit in ranked if hit.similarity is not None and hit.similarity >= least]
    return ranked[: query.top_k]
