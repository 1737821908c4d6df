"""Vectors of one embedder in one file: made outside of locks, never mixed with another's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall import catalog
from inferscale_sdk.recall.base import Embedder
from inferscale_sdk.sqlite.database import Database

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["VectorSource"]

_NORM_TOLERANCE = 0.01


class VectorSource:
    """An embedder and its claim to a file.

    Args:
        embedder: Makes the vectors.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    # -- the claim -------------------------------------------------------------------------

    def open(self, db: Database, *, reembed: bool) -> None:
        """See that the file's vectors are this embedder's, or drop them.

        Raises:
            ConfigurationError: They are another's and ``reembed`` is not set.
        """
        with db.read() as connection:
            owner = catalog.get_state(connection, "embedder")
        if owner in (None, self._embedder.name):
            return
        if not reembed:
            raise self._mismatch(db.path, owner)
        with db.write() as connection:
            connection.execute("DELETE FROM vector")
            connection.execute(
                "UPDATE partition SET generation = generation + 1, epoch = epoch + 1"
            )
            catalog.set_state(connection, "embedder", self._embedder.name)

    def check(self, connection: sqlite3.Connection) -> None:
        """Another process may have claimed the file for another embedder since.

        Raises:
            ConfigurationError: It has.
        """
        owner = catalog.get_state(connection, "embedder")
        if owner not in (None, self._embedder.name):
            raise self._mismatch("the recall file", owner)

    def claim(self, connection: sqlite3.Connection) -> None:
        """Mark the file as this embedder's, in the transaction that writes vectors.

        Raises:
            ConfigurationError: It is another's.
        """
        self.check(connection)
        catalog.set_state(connection, "embedder", self._embedder.name)

    def _mismatch(self, path: str, owner: str) -> ConfigurationError:
        return ConfigurationError(
            f"{path} holds vectors of {owner!r}, the embedder is {self._embedder.name!r}; use the "
            "former, or make all vectors anew: delete the file (it is made again from the facts), "
            "or give Memory(index=HybridRecall(path, embedder, on_mismatch='reembed'))"
        )

    # -- making vectors --------------------------------------------------------------------

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]`` of a question."""
        vector: NDArray[np.float32] = self._checked([self._embedder.embed_query(text)], 1)[0]
        return vector

    def embed_items(
        self, items: Sequence[catalog.Item], known: Mapping[str, catalog.Stored]
    ) -> list[catalog.Item]:
        """The items with vectors; a text that did not change keeps the vector it has."""
        ready: dict[str, bytes] = {}
        for item in items:
            old = known.get(item.fact_id)
            if old is not None and old.vector is not None and old.text == item.text:
                ready[item.fact_id] = old.vector
        todo = [item for item in items if item.fact_id not in ready]
        for item, data in zip(todo, self._embed([item.text for item in todo]), strict=True):
            ready[item.fact_id] = data
        return [replace(item, vector=ready[item.fact_id]) for item in items]

    def fill(self, db: Database, partition_pks: Sequence[int], batch: int) -> None:
        """Make the vectors that these partitions' items lack."""
        for partition_pk in partition_pks:
            while self._fill_some(db, partition_pk, batch):
                pass

    def _fill_some(self, db: Database, partition_pk: int, batch: int) -> bool:
        with db.read() as connection:
            rows = connection.execute(
                "SELECT pk, text FROM item LEFT JOIN vector ON item_pk = pk"
                " WHERE partition_pk = ? AND data IS NULL ORDER BY pk LIMIT ?",
                (partition_pk, batch),
            ).fetchall()
        if not rows:
            return False
        vectors = self._embed([text for _, text in rows])
        with db.write() as connection:
            self.claim(connection)
            # The item may be gone, or have been given its vector by another process.
            connection.executemany(
                "INSERT OR IGNORE INTO vector SELECT pk, ? FROM item WHERE pk = ?",
                [(data, pk) for (pk, _), data in zip(rows, vectors, strict=True)],
            )
            connection.execute(
                "UPDATE partition SET generation = generation + 1, epoch = epoch + 1 WHERE pk = ?",
                (partition_pk,),
            )
        return True

    def _embed(self, texts: list[str]) -> list[bytes]:
        if not texts:
            return []
        vectors = self._checked(self._embedder.embed(texts), len(texts))
        return [vector.astype("<f4").tobytes() for vector in vectors]

    def _checked(self, vectors: object, count: int) -> NDArray[np.float32]:
        """Vectors ``[text, dim]``, as promised.

        Raises:
            ConfigurationError: The embedder broke its contract.
        """
        import numpy as np

        array = np.asarray(vectors, dtype=np.float32)
        wanted = (count, self._embedder.dim)
        if array.shape != wanted:
            raise ConfigurationError(
                f"the embedder {self._embedder.name!r} returned shape {array.shape} instead of "
                f"{wanted}; check its dim"
            )
        norms = np.linalg.norm(array, axis=1)
        if not np.all(np.abs(norms - 1.0) <= _NORM_TOLERANCE):  # also catches what is not a number
            worst = float(norms[np.argmax(np.abs(norms - 1.0))])
            raise ConfigurationError(
                f"the embedder {self._embedder.name!r} returned a vector of length {worst:g}; "
                "vectors must be L2-normalised to length 1"
            )
        return array
