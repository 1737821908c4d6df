"""``inferscale bench scale``: recall and planning while the store grows.

No model runs: segments are kept as digests of their tokens, which is all that planning needs to
know of them. Tokenizer, stores, index and question embedding are the real ones. A corpus that is
smaller than the store is told again with numbered texts; their vectors are made once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_sdk.bench.speed.bed import ASKED, bench_window
from inferscale_sdk.bench.speed.corpus import QUESTIONS, Corpus
from inferscale_sdk.bench.speed.encoding import wait_while_encoding
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.timing import collector_paused
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.memory import Memory
from inferscale_sdk.recall.base import Embedder
from inferscale_sdk.types import NewFact

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RepeatingEmbedder", "ScaleOptions", "measure_scale"]

_ADD_AT_ONCE = 10_000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """How far to go.

    Args:
        sizes: Facts in the store, ascending.
        in_namespace: Facts of the person asked about; half the store at most.
        per_namespace: Facts of each other person.
        k: Facts recalled.
        requests: Timed questions at each size.

    Raises:
        ConfigurationError: A number is out of range.
    """

    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    in_namespace: int = 10_000
    per_namespace: int = 1_000
    k: int = 50
    requests: int = 40

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 2 or list(self.sizes) != sorted(set(self.sizes)):
            raise ConfigurationError(f"sizes={self.sizes} must be ascending, from 2 on")
        for name in ("in_namespace", "per_namespace", "k", "requests"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")


class RepeatingEmbedder:
    """The vectors of an embedder; a numbered text has that of the text itself.

    Args:
        inner: Makes the vectors.
    """

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._made: dict[str, NDArray[np.float32]] = {}

    @property
    def name(self) -> str:
        """Not that of the inner one: its vectors must not be taken for these."""
        return f"{self._inner.name}+repeating"

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._inner.dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[text, dim]``."""
        import numpy as np

        bases = [text.rpartition(" (note ")[0] or text for text in texts]
        new = [text for text in dict.fromkeys(bases) if text not in self._made]
        if new:
            self._made.update(zip(new, self._inner.embed(new), strict=True))
        return np.stack([self._made[text] for text in bases])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]`` of a question, made anew."""
        return self._inner.embed_query(text)


def measure_scale(
    engine: Engine,
    folder: Path,
    embedder: Embedder,
    options: ScaleOptions,
    corpus: Corpus,
    stages: Stages,
) -> dict[str, Any]:
    """Let a store grow and ask one person's questions at every size.

    Args:
        engine: Plans are made for it; it encodes, and is never asked a question.
        folder: An empty one.
        embedder: For facts and questions.
        options: How far to go.
        corpus: Where facts come from.
        stages: Told how far it is.
    """
    repeating = RepeatingEmbedder(embedder)
    filler = _Filler(engine, folder, repeating, options, corpus, stages)
    sizes = []
    for size in options.sizes:
        grown = filler.grow(size)
        asked = _ask(engine, folder, repeating, options, stages, size)
        files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        sizes.append({"facts": size, **grown, **asked, "files_mib": round(files / _MIB, 1)})
    return {"k": options.k, "sizes": sizes}


@contextmanager
def _opened(engine: Engine, folder: Path, embedder: Embedder) -> Iterator[Memory]:
    with Memory(
        engine,
        path=folder,
        embedder=embedder,
        window=bench_window(),
        background=False,
        multi_user=True,
    ) as memory:
        yield memory


@dataclass(slots=True)
class _Filler:
    engine: Engine
    folder: Path
    embedder: Embedder
    options: ScaleOptions
    corpus: Corpus
    stages: Stages
    asked: int = 0
    others: int = 0

    def grow(self, size: int) -> dict[str, Any]:
        """Add facts until there are ``size``, and index them; how fast that went."""
        asked = min(self.options.in_namespace, size // 2) - self.asked
        others = size - self.asked - self.others - asked
        with _opened(self.engine, self.folder, self.embedder) as memory:
            started = time.perf_counter()
            with self.stages.progress("store", f"Storing up to {size:,} facts", size) as tell:
                for user, start, n in self._batches(asked, others):
                    facts = [NewFact(t, "scale") for t in self.corpus.facts(n, start=start)]
                    memory.add_facts(facts, user_id=user)
                    tell(self.asked + self.others)
            stored = time.perf_counter() - started
            # Vectors of texts that were not seen before are the embedder's time, not the index's.
            with self.stages.stage("embed", "Embedding"):
                self._embed_ahead(size)
            started = time.perf_counter()
            with self.stages.stage("index", f"Indexing {asked + others:,} facts"):
                memory.search("?", top_k=1, user_id=ASKED)
            indexed = time.perf_counter() - started
            with self.stages.stage("ledger", "Noting what has KV"):
                wait_while_encoding(memory, user_id=ASKED)
        added = asked + others
        return {
            "namespaces": 1 + -(-self.others // self.options.per_namespace),
            "facts_in_namespace": self.asked,
            "stored_per_second": round(added / stored, 1),
            "indexed_per_second": round(added / indexed, 1),
        }

    def _batches(self, asked: int, others: int) -> Iterator[tuple[str, int, int]]:
        while asked:
            n = min(asked, _ADD_AT_ONCE)
            self.asked += n
            asked -= n
            yield ASKED, self.asked - n, n
        while others:
            person, there = divmod(self.others, self.options.per_namespace)
            n = min(others, self.options.per_namespace - there)
            self.others += n
            others -= n
            yield f"person-{person}", self.others - n, n

    def _embed_ahead(self, size: int) -> None:
        texts = self.corpus.facts(min(size, len(self.corpus.texts)))
        for start in range(0, len(texts), 1000):
            self.embedder.embed(texts[start : start + 1000])


def _ask(
    engine: Engine,
    folder: Path,
    embedder: Embedder,
    options: ScaleOptions,
    stages: Stages,
    size: int,
) -> dict[str, Any]:
    """The first search of a process, then recall, planning, and both as an application has them."""
    recall, planning, both = [], [], []
    with _opened(engine, folder, embedder) as memory:
        started = time.perf_counter()
        memory.search(QUESTIONS[0], top_k=options.k, user_id=ASKED)
        first = (time.perf_counter() - started) * 1e3
        memory.prepare(QUESTIONS[0], top_k=options.k, user_id=ASKED)
        total = options.requests
        with stages.steps("ask", f"Asking {size:,} facts", total) as step, collector_paused():
            for number in range(total):
                question = f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"
                at = time.perf_counter()
                found = memory.search(question, top_k=options.k, user_id=ASKED)
                recalled = time.perf_counter()
                memory.prepare(question, facts=found, user_id=ASKED)
                planned = time.perf_counter()
                memory.prepare(f"{question}!", top_k=options.k, user_id=ASKED)
                done = time.perf_counter()
                recall.append((recalled - at) * 1e3)
                planning.append((planned - recalled) * 1e3)
                both.append((done - planned) * 1e3)
                step()
    return {
        "first_search_ms": round(first, 2),
        "recall_ms": Spread.of(recall).as_dict(),
        "planning_ms": Spread.of(planning).as_dict(),
        "both_ms": Spread.of(both).as_dict(),
    }
