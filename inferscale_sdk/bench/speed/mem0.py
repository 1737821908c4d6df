"""What a Mem0 user has today: the same facts in Mem0, found by the same embedder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import MissingDependency

__all__ = ["Mem0Store", "open_mem0"]


class Mem0Store:
    """Facts in ``mem0ai``: no model extracts anything, vectors lie in a local Qdrant folder.

    Args:
        memory: A ``mem0.Memory``.
        user: Whose facts.
    """

    def __init__(self, memory: Any, user: str) -> None:
        self._memory, self._user = memory, user

    def count(self) -> int:
        """Facts it has."""
        found = self._memory.get_all(filters={"user_id": self._user}, top_k=1_000_000)
        return len(found["results"])

    def add(self, texts: Sequence[str], step: Callable[[int], None]) -> None:
        """Store facts as they are; ``step`` is told how many are."""
        for done, text in enumerate(texts, start=1):
            message = [{"role": "user", "content": text}]
            self._memory.add(message, user_id=self._user, infer=False)
            step(done)

    def search(self, query: str, top_k: int) -> list[str]:
        """Texts of what it finds, best first."""
        found = self._memory.search(
            query, top_k=top_k, filters={"user_id": self._user}, threshold=0.0
        )
        return [hit["memory"] for hit in found["results"]]


def open_mem0(folder: Path, embedder_path: Path, *, dim: int, user: str) -> Mem0Store:
    """Open a store in ``folder``.

    Args:
        folder: Where it keeps everything.
        embedder_path: Of the sentence-transformers model that both sides use.
        dim: Length of its vectors.
        user: Whose facts.

    Raises:
        MissingDependency: mem0ai is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # It reads both when it is imported; by default it reports to its makers.
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ["MEM0_DIR"] = str(folder)
    try:
        from mem0 import Memory
    except ImportError:
        raise MissingDependency("mem0ai", "bench", "the comparison with Mem0") from None
    config = {
        "vector_store": {
            "provider": "qdrant",
            "config": {
                "collection_name": "bench",
                "path": str(folder / "qdrant"),
                "embedding_model_dims": dim,
                "on_disk": True,
            },
        },
        "embedder": {
            "provider": "huggingface",
            "config": {"model": str(embedder_path), "embedding_dims": dim},
        },
        # Asked for by its configuration; with infer=False it is never called.
        "llm": {"provider": "openai", "config": {"api_key": "none"}},
        "history_db_path": str(folder / "history.db"),
    }
    return Mem0Store(Memory.from_config(config), user)
