"""The contracts of recall: embedders and indexes.

An index is derived from the fact store and can be rebuilt from it. It keeps each partition
(``Namespace.partition``: one app and user) apart: a search loads and sees no other partition's
vectors or text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Fact, Namespace
from inferscale_sdk.unicode import require_unicode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RECALL_FILE", "Embedder", "Hit", "RecallIndex", "RecallQuery"]

RECALL_FILE = "recall.db"
"""What a memory's index is called in its folder."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors."""

    @property
    def name(self) -> str:
        """Identifies model and settings; vectors of different names are never compared."""
        ...

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[text, dim]`` of facts to be stored, L2-normalised, float32."""
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]`` of a question, L2-normalised, float32."""
        ...


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """One search.

    Args:
        text: The question.
        scope: Whose facts; must not be empty.
        top_k: How many at most.
        filters: Metadata conditions, as in ``FactStore.find``.
        since: Event (else creation) time from, inclusive.
        until: Event (else creation) time to, exclusive.
        threshold: Least cosine similarity of the dense search; facts found only lexically are
            dropped when a threshold is set and their similarity is below it.
    """

    text: str
    scope: Namespace
    top_k: int = 20
    filters: Mapping[str, Any] | None = None
    since: datetime | None = None
    until: datetime | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Check what no index could compare otherwise.

        Raises:
            ConfigurationError: The question is not Unicode text, or the threshold no number
                from -1 to 1.
        """
        require_unicode(self.text, "the question")
        least = self.threshold
        if least is None:
            return
        number = isinstance(least, int | float) and not isinstance(least, bool)
        if not number or not -1 <= least <= 1:
            raise ConfigurationError(
                f"threshold={least!r} is no cosine similarity; give a number from -1 to 1"
            )


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. ``score`` orders results, higher is better; ``similarity`` is the cosine."""

    fact_id: str
    score: float
    similarity: float | None = None


class RecallIndex(ABC):
    """A searchable view of the facts. Safe for several threads and processes."""

    @abstractmethod
    def upsert(self, facts: Sequence[Fact]) -> None:
        """Index these versions, replacing earlier ones of the same facts."""

    @abstractmethod
    def remove(self, fact_ids: Sequence[str]) -> None:
        """Drop facts, text and vectors; unknown ids are ignored."""

    @abstractmethod
    def search(self, query: RecallQuery) -> list[Hit]:
        """Best first, at most ``top_k``, ties broken by fact id.

        Raises:
            NamespaceError: The scope is empty.
            ConfigurationError: ``top_k`` is below 1, or a filter is malformed.
        """

    @abstractmethod
    def cursor(self) -> int:
        """The fact store's ``seq`` up to which this index is complete."""

    @abstractmethod
    def set_cursor(self, seq: int, mark: str = "") -> None:
        """Record that the index is complete up to ``seq``.

        Args:
            seq: The fact store's ``seq``.
            mark: What tells the store and its event ``seq`` from any other (see ``sync``).
        """

    @abstractmethod
    def place(self) -> tuple[int, str]:
        """The cursor and the mark it was set with, read together; ``(0, "")`` for a new index."""

    @abstractmethod
    def restart(self, stale: str, mark: str) -> bool:
        """Drop every fact and put the cursor to 0 with ``mark``, in one transaction.

        Does nothing if the index's mark is no longer ``stale``: another process was first.

        Returns:
            Whether it was done.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files. Calling it twice is fine."""
