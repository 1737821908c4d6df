"""The three indexes a caller may choose from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall.base import Embedder, Hit, RecallQuery
from inferscale_sdk.recall.fusion import Fusion, ReciprocalRankFusion
from inferscale_sdk.recall.index import CACHE_BYTES, SQLiteRecall, hits

__all__ = ["DenseRecall", "HybridRecall", "LexicalRecall"]

# Facts each search contributes to the fusion; more changed no result in the measurements.
_DEPTH = 200


class HybridRecall(SQLiteRecall):
    """Dense and lexical search, fused. The default.

    Args:
        path: See :class:`SQLiteRecall`, as for the other arguments.
        embedder: Makes the vectors.
        fusion: How the two rankings are joined.
        cache_bytes: Memory for vectors of the partitions used last.
        on_mismatch: What to do if the file's vectors are of another embedder.

    Raises:
        ConfigurationError: The file is not a recall index, or its vectors are of another embedder.
        StoreError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        embedder: Embedder,
        *,
        fusion: Fusion | None = None,
        cache_bytes: int = CACHE_BYTES,
        on_mismatch: Literal["raise", "reembed"] = "raise",
    ) -> None:
        super().__init__(
            path,
            embedder,
            uses_terms=True,
            cache_bytes=cache_bytes,
            on_mismatch=on_mismatch,
        )
        self._fusion = fusion or ReciprocalRankFusion()

    def search(self, query: RecallQuery) -> list[Hit]:
        """See :meth:`RecallIndex.search`. A blank question finds nothing."""
        found = self._gather(query, max(_DEPTH, 2 * query.top_k))
        return hits(self._fusion.fuse(found.dense, found.lexical), found, query)


class DenseRecall(SQLiteRecall):
    """Cosine similarity alone; arguments as for :class:`HybridRecall`."""

    def __init__(
        self,
        path: Path | str,
        embedder: Embedder,
        *,
        cache_bytes: int = CACHE_BYTES,
        on_mismatch: Literal["raise", "reembed"] = "raise",
    ) -> None:
        super().__init__(
            path,
            embedder,
            uses_terms=False,
            cache_bytes=cache_bytes,
            on_mismatch=on_mismatch,
        )

    def search(self, query: RecallQuery) -> list[Hit]:
        """See :meth:`RecallIndex.search`. A blank question finds nothing."""
        found = self._gather(query, query.top_k)
        return hits(dict(found.dense), found, query)


class LexicalRecall(SQLiteRecall):
    """BM25 alone: needs no model. Facts that share no word with the question are not found.

    Args:
        path: See :class:`HybridRecall`.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, None, uses_terms=True, cache_bytes=CACHE_BYTES, on_mismatch="raise")

    def search(self, query: RecallQuery) -> list[Hit]:
        """See :meth:`RecallIndex.search`.

        Raises:
            ConfigurationError: A threshold is set: there is no cosine to compare with it.
        """
        if query.threshold is not None:
            raise ConfigurationError(
                f"threshold={query.threshold!r} is a cosine similarity, which lexical recall does "
                "not have; leave it out or use HybridRecall"
            )
        found = self._gather(query, query.top_k)
        return hits(dict(found.lexical), found, query)
