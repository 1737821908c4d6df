"""Exact inner-product search over one partition's vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferscale_sdk.errors import MissingDependency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DenseIndex"]

# Scores are compared after rounding, so that equal texts tie whatever lane computed them.
_DIGITS = 6


class DenseIndex:
    """A FAISS ``IndexFlatIP`` whose rows are item numbers in ascending order.

    Not thread-safe; its owner holds a lock. Where FAISS is built for GPUs and one is there, a copy
    on it answers searches over all rows; searches over a subset stay on the CPU, because a flat
    GPU index takes no selector.

    Args:
        dim: Length of a vector.

    Raises:
        MissingDependency: FAISS is not installed.
    """

    def __init__(self, dim: int) -> None:
        import numpy as np

        self._faiss = _import_faiss()
        self._flat = self._faiss.IndexFlatIP(dim)
        self._items: NDArray[np.int64] = np.zeros(0, np.int64)
        self._on_gpu: Any = None
        self._resources: Any = _gpu_resources(self._faiss)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors."""
        return int(self._flat.ntotal * self._flat.d * 4)

    def add(self, items: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Append rows; every item number is above those already there.

        Args:
            items: Item numbers ``[row]``, ascending.
            vectors: Unit vectors ``[row, dim]``.
        """
        import numpy as np

        if len(items):
            self._flat.add(np.ascontiguousarray(vectors, np.float32))
            self._items = np.concatenate([self._items, items])
            self._on_gpu = None

    def keep(self, items: NDArray[np.int64]) -> None:
        """Drop every row whose item number is not among ``items``."""
        import numpy as np

        staying = np.isin(self._items, items, assume_unique=True)
        if not staying.all():
            self._flat.remove_ids(np.flatnonzero(~staying))
            self._items = self._items[staying]
            self._on_gpu = None

    def search(
        self, vector: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best rows, best first.

        Args:
            vector: Unit vector ``[dim]``.
            k: How many; more come back if the last ones tie, so that the caller can break the tie.
            allowed: Ascending item numbers to choose from, ``None`` for all.

        Returns:
            Item numbers ``[hit]`` and similarities ``[hit]``, rounded to six digits.
        """
        import numpy as np

        rows = None if allowed is None else self._rows(allowed)
        total = len(self) if rows is None else len(rows)
        if total == 0 or k < 1:
            return np.zeros(0, np.int64), np.zeros(0)
        # One more than asked for shows whether the cut goes through a tie.
        want = min(k + 1, total)
        while True:
            found, scores = self._top(vector, want, rows)
            if want == total or scores[k - 1] > scores[-1]:
                break
            want = min(2 * want, total)
        last = scores[min(k, len(scores)) - 1]
        within = scores >= last
        return self._items[found[within]], scores[within]

    def similarities(
        self, vector: NDArray[np.float32], items: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Cosines with ``vector`` ``[dim]``, of those of the items that have a vector.

        Returns:
            Item numbers ``[row]`` and similarities ``[row]``, rounded to six digits.
        """
        import numpy as np

        rows = self._rows(items)
        if not len(rows):
            return np.zeros(0, np.int64), np.zeros(0)
        scores = self._flat.reconstruct_batch(rows) @ vector
        return self._items[rows], scores.astype(np.float64).round(_DIGITS)

    def _rows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        return np.flatnonzero(np.isin(self._items, items, assume_unique=True))

    def _top(
        self, vector: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        import numpy as np

        question = np.ascontiguousarray(vector, np.float32).reshape(1, -1)
        if rows is None:
            scores, found = self._searcher().search(question, k)
        else:
            chosen = np.zeros(len(self), np.uint8)
            chosen[rows] = 1
            bits = np.packbits(chosen, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
            parameters = self._faiss.SearchParameters(sel=selector)
            scores, found = self._flat.search(question, k, params=parameters)
        return found[0], scores[0].astype(np.float64).round(_DIGITS)

    def _searcher(self) -> Any:
        if self._resources is None:
            return self._flat
        if self._on_gpu is None:
            self._on_gpu = self._faiss.index_cpu_to_gpu(self._resources, 0, self._flat)
        return self._on_gpu


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingDependency("faiss-cpu", "recall", "dense recall") from None
    return faiss


def _gpu_resources(faiss: Any) -> Any:
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() < 1:
        return None
    return faiss.StandardGpuResources()
