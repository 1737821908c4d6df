"""An embedder without a model: texts that share words are near."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FakeEmbedder"]

_WORD = re.compile(r"\w+")


class FakeEmbedder:
    """Adds up one fixed random direction per word; the same in every process.

    Args:
        dim: Length of a vector.
        name: Identity; embedders of different names make different vectors.
    """

    def __init__(self, dim: int = 64, *, name: str | None = None) -> None:
        self._dim = dim
        self._name = name or f"fake-words-{dim}"
        self._words: dict[str, NDArray[np.float32]] = {}
        self.calls = 0
        """How many texts were embedded, questions not counted."""

    @property
    def name(self) -> str:
        """Identity."""
        return self._name

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[text, dim]``, L2-normalised."""
        import numpy as np

        self.calls += len(texts)
        vectors = [self._one(text) for text in texts]
        return np.stack(vectors) if vectors else np.zeros((0, self._dim), np.float32)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]``, L2-normalised."""
        return self._one(text)

    def _one(self, text: str) -> NDArray[np.float32]:
        import numpy as np

        words = _WORD.findall(text.casefold()) or ["\0nothing"]
        total = np.sum([self._word(word) for word in words], axis=0)
        vector: NDArray[np.float32] = (total / np.linalg.norm(total)).astype(np.float32)
        return vector

    def _word(self, word: str) -> NDArray[np.float32]:
        import numpy as np

        vector = self._words.get(word)
        if vector is None:
            seed = hashlib.blake2b(f"{self._name}\0{word}".encode(), digest_size=8).digest()
            generator = np.random.default_rng(int.from_bytes(seed, "little"))
            vector = generator.standard_normal(self._dim).astype(np.float32)
            self._words[word] = vector
        return vector
