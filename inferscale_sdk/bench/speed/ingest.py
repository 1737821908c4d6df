"""``inferscale bench ingest``: how fast facts become durable KV."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.bench.speed.corpus import Corpus
from inferscale_sdk.bench.speed.encoding import wait_while_encoding
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.timing import collector_paused
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy
from inferscale_sdk.memory import Memory
from inferscale_sdk.recall.base import Embedder
from inferscale_sdk.types import NewFact

__all__ = ["IngestOptions", "measure_ingest"]


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What to encode.

    Args:
        window: Facts that each fact is encoded behind.
        facts: Of one measurement with windows encoded as a whole.
        single_facts: Of one measurement with a request for each fact.
        rounds: Measurements of each way, in turns.

    Raises:
        ConfigurationError: A number is out of range.
    """

    window: int = 20
    facts: int = 100
    single_facts: int = 30
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("window", "facts", "single_facts", "rounds"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    strategy: WindowStrategy
    facts: int


@dataclass(frozen=True, slots=True)
class _Run:
    facts_per_second: float
    requests: int
    ratio: float


def measure_ingest(
    memory_for: Any, options: IngestOptions, corpus: Corpus, stages: Stages
) -> dict[str, Any]:
    """Encode fresh facts of fresh users, whole windows and fact by fact in turns.

    Each measurement first has ``window`` facts encoded that are not counted, so that every fact
    counted has a whole window before it.

    Args:
        memory_for: Makes a memory with a window strategy on the engine that is measured.
        options: What to encode.
        corpus: Where facts come from.
        stages: Told how far it is.
    """
    w = options.window
    ways = {
        "batched": _Way(f"{w} facts a request", PrecedingTurns(w, w), options.facts),
        "single": _Way("one fact a request", PrecedingTurns(w, 1), options.single_facts),
    }
    runs: dict[str, list[_Run]] = {name: [] for name in ways}
    used = 0
    with stages.steps("encode", "Encoding", options.rounds * len(ways)) as step:
        for _ in range(options.rounds):
            for name, way in ways.items():
                texts = corpus.facts(w + way.facts, start=used)
                used += len(texts)
                with memory_for(way.strategy) as memory, collector_paused():
                    runs[name].append(_encode(memory, texts, w))
                step()
    cells = {name: _cell(ways[name], runs[name]) for name in ways}
    batched, single = (cells[n]["facts_per_second"]["median"] for n in ("batched", "single"))
    return {"window": w, "ways": cells, "batched_over_single": round(batched / single, 3)}


def ingest_memory(engine: Engine, folder: Any, embedder: Embedder) -> Any:
    """What :func:`measure_ingest` makes memories with: one store a strategy, in ``folder``."""

    def make(strategy: WindowStrategy) -> Memory:
        return Memory(
            engine,
            path=folder / strategy.name.replace("/", "-"),
            embedder=embedder,
            window=strategy,
            background=False,
            multi_user=True,
        )

    return make


def _encode(memory: Memory, texts: list[str], window: int) -> _Run:
    user = f"ingest-{secrets.token_hex(4)}"
    _remember(memory, user, texts[:window])
    wait_while_encoding(memory, user_id=user)
    _remember(memory, user, texts[window:])
    before = memory.stats().encoding
    started = time.perf_counter()
    wait_while_encoding(memory, user_id=user)
    seconds = time.perf_counter() - started
    after = memory.stats().encoding
    own = after.own_tokens - before.own_tokens
    return _Run(
        facts_per_second=(len(texts) - window) / seconds,
        requests=after.requests - before.requests,
        ratio=(after.prompt_tokens - before.prompt_tokens) / max(1, own),
    )


def _remember(memory: Memory, user: str, texts: list[str]) -> None:
    memory.add_facts([NewFact(text, "ingest") for text in texts], user_id=user)


def _cell(way: _Way, runs: list[_Run]) -> dict[str, Any]:
    return {
        "name": way.name,
        "facts": way.facts,
        "facts_per_second": Spread.of([run.facts_per_second for run in runs]).as_dict(),
        "requests": runs[-1].requests,
        "prompt_tokens_per_own_token": round(runs[-1].ratio, 2),
    }
