"""LangChain's embeddings as an embedder of the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LangChainEmbedder"]


class LangChainEmbedder:
    """Embeds with a LangChain embedding model.

    Args:
        embeddings: The model.
        name: Identity of model and settings, by default made from the object's fields. Vectors
            stored under another name are made again.
    """

    def __init__(self, embeddings: Embeddings, *, name: str | None = None) -> None:
        self._embeddings = embeddings
        self._name = name or _identity(embeddings)
        self._dim: int | None = None

    @property
    def name(self) -> str:
        """Identity."""
        return self._name

    @property
    def dim(self) -> int:
        """Length of a vector; found out by embedding one text."""
        if self._dim is None:
            self._dim = len(self._embeddings.embed_query("."))
        return self._dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[text, dim]``, L2-normalised."""
        import numpy as np

        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return _unit(self._embeddings.embed_documents(list(texts)))

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]``, L2-normalised."""
        vector: NDArray[np.float32] = _unit([self._embeddings.embed_query(text)])[0]
        return vector


def _unit(vectors: list[list[float]]) -> NDArray[np.float32]:
    import numpy as np

    raw = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (raw / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit


def _identity(embeddings: Embeddings) -> str:
    cls = type(embeddings)
    fields: dict[str, Any] = {
        name: getattr(embeddings, name, None)
        for name in ("model", "model_name", "model_id", "deployment", "dimensions", "size")
    }
    known = [f"{name}={value}" for name, value in fields.items() if isinstance(value, str | int)]
    return f"langchain:{cls.__module__}.{cls.__qualname__}({', '.join(known)})"
