"""What a process keeps in memory of a partition, and how it notices that others changed it."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inferscale_sdk.recall.catalog import Partition, read_integers
from inferscale_sdk.recall.dense import DenseIndex
from inferscale_sdk.recall.lexical import LexicalIndex
from inferscale_sdk.recall.roster import Roster
from inferscale_sdk.sqlite.clauses import Clause

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PartitionView", "ViewCache"]

_BYTES_PER_ITEM = 100  # fact id, numbers and list slot

Row = tuple[int, str, int, bytes | None]
"""Item number, fact id, number of terms, vector."""


class PartitionView:
    """One partition as of a generation. Hold :attr:`lock` while using it.

    A changed fact is a new item with a higher number, so a change is seen by comparing the list of
    item numbers, and only what is new is read.

    Args:
        pk: The partition's number.
        dim: Length of its vectors, ``None`` if they are not wanted.
    """

    def __init__(self, pk: int, dim: int | None) -> None:
        self.lock = threading.Lock()
        self._pk = pk
        self._dim = dim
        self._generation = -1
        self._epoch = -1
        self.roster = Roster.empty()
        self.dense: DenseIndex | None = None

    @property
    def lexical(self) -> LexicalIndex:
        """The terms of the items there are now."""
        return LexicalIndex(self._pk, self.roster)

    @property
    def lacks_vectors(self) -> bool:
        """Whether some items have no vector yet."""
        return self.dense is not None and len(self.dense) < len(self.roster)

    @property
    def nbytes(self) -> int:
        """Memory held, roughly."""
        return _BYTES_PER_ITEM * len(self.roster) + (self.dense.nbytes if self.dense else 0)

    def refresh(self, connection: sqlite3.Connection, partition: Partition) -> None:
        """Catch up with the connection's snapshot; does nothing if already there or beyond."""
        import numpy as np

        if self._generation >= partition.generation:
            return
        if self._epoch != partition.epoch:
            self.roster = Roster.empty()
            self.dense = None if self._dim is None else DenseIndex(self._dim)
        now = read_integers(
            connection, "SELECT pk FROM item WHERE partition_pk = ? ORDER BY pk", (self._pk,)
        )
        new = np.setdiff1d(now, self.roster.items, assume_unique=True)
        rows = self._read(connection, None if len(new) == len(now) else new)
        self.roster = self.roster.kept(now).with_rows([row[:3] for row in rows])
        if self.dense is not None:
            self.dense.keep(now)
            self._add_vectors(self.dense, rows)
        self._generation, self._epoch = partition.generation, partition.epoch

    def _read(self, connection: sqlite3.Connection, items: NDArray[np.int64] | None) -> list[Row]:
        """Rows of some items, ``None`` for all of the partition."""
        if items is not None and not len(items):
            return []
        columns = "item.pk, fact_id, n_terms, " + ("NULL" if self._dim is None else "data")
        source = "item" + ("" if self._dim is None else " LEFT JOIN vector ON item_pk = item.pk")
        if items is None:
            where = Clause("partition_pk = ?", (self._pk,))
        else:
            wanted = json.dumps(items.tolist())
            where = Clause("item.pk IN (SELECT value FROM json_each(?))", (wanted,))
        return connection.execute(
            f"SELECT {columns} FROM {source} WHERE {where.sql} ORDER BY item.pk",  # noqa: S608
            where.params,
        ).fetchall()

    def _add_vectors(self, dense: DenseIndex, rows: Sequence[Row]) -> None:
        import numpy as np

        embedded = [(row[0], row[3]) for row in rows if row[3] is not None]
        if embedded:
            flat = np.frombuffer(b"".join(data for _, data in embedded), "<f4")
            vectors = flat.reshape(len(embedded), -1)  # [row, dim]
            dense.add(np.array([item for item, _ in embedded], np.int64), vectors)


class ViewCache:
    """Views of the partitions used last, within a byte budget. Safe for several threads.

    Args:
        budget_bytes: The least recently used views go when their sum is above this; the one used
            last always stays.
        dim: See :class:`PartitionView`.
    """

    def __init__(self, budget_bytes: int, dim: int | None) -> None:
        self._budget_bytes = budget_bytes
        self._dim = dim
        self._views: OrderedDict[int, PartitionView] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._views)

    def get(self, pk: int) -> PartitionView:
        """The partition's view, empty if it is new; call :meth:`trim` when done with it."""
        with self._lock:
            view = self._views.pop(pk, None) or PartitionView(pk, self._dim)
            self._views[pk] = view
            return view

    def trim(self) -> None:
        """Let go of what is above the budget; views in use elsewhere live on until then."""
        with self._lock:
            used = sum(view.nbytes for view in self._views.values())
            for pk in self._oldest_first():
                if used <= self._budget_bytes:
                    return
                used -= self._views.pop(pk).nbytes

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._views.clear()

    def _oldest_first(self) -> Iterable[int]:
        return list(self._views)[:-1]
