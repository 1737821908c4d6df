"""What speed is measured on: a memory of a corpus, and the servers it is served by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_sdk.bench.speed.arms import Arm
from inferscale_sdk.bench.speed.corpus import Corpus
from inferscale_sdk.bench.speed.encoding import encode_waiting
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import ConfigurationError, IncompatibleModel
from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy
from inferscale_sdk.memory import Memory
from inferscale_sdk.types import NewFact

if TYPE_CHECKING:
    from inferscale_sdk.recall.base import Embedder

__all__ = [
    "ASKED",
    "OTHERS",
    "Bed",
    "BedOptions",
    "bench_window",
    "check_engine",
    "open_bed",
    "serving",
]

ASKED, OTHERS = "asked", "others"
"""Whose facts are asked for, and whose push them out of host memory."""

# Room for one request of the largest k and a little more: what comes after pushes it out.
_ROOM = 1.25
_PATIENCE_SECONDS = 1800.0  # of a hundred users the last one waits for all others
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BedOptions:
    """What to serve and where.

    Args:
        folder: Facts, KV and logs stay here, so that a second run encodes nothing.
        facts: How many the asked person has.
        base_url: A running server in place of one that is started; only the tiers it has.
        model: Folder or name of the model; by default the bundled one.
        arms: What is compared; tiers among them decide which servers are needed.
        remote_url: The remote tier; by default a folder, as a store behind a file system would be.
        device_bytes: Size of the arena in the engine's memory, for ``device``.
        kv_cache_gib: vLLM's KV cache on a CPU. The ceiling must find its prompts there.
        max_k: Facts in the largest prompt.
    """

    folder: Path
    facts: int = 300
    base_url: str | None = None
    model: str | None = None
    arms: tuple[Arm, ...] = ()
    remote_url: str | None = None
    device_bytes: int = 256 * _MIB
    kv_cache_gib: int = 3
    max_k: int = 50


@dataclass(slots=True)
class Bed:
    """Everything that is there when measuring begins.

    Args:
        memory: Holds the facts; its engine is ``engine``.
        engine: Serves text, the ceiling, and injection from host memory and disk.
        engines: Other servers, by the arm that needs them.
        encoded: Facts encoded in this run.
    """

    memory: Memory
    engine: Engine
    engines: dict[Arm, Engine] = field(default_factory=dict)
    encoded: int = 0

    def engine_for(self, arm: Arm) -> Engine:
        """The server of an arm."""
        return self.engines.get(arm, self.engine)


@contextmanager
def open_bed(
    options: BedOptions, corpus: Corpus, stages: Stages, embedder: Embedder
) -> Iterator[Bed]:
    """Remember and encode the corpus, and start what serves it.

    Raises:
        ConfigurationError: A running server cannot be asked for a tier that only a start decides.
        IncompatibleModel: The server cannot inject.
        EngineError: A server failed.
    """
    started = {Arm.DISK, Arm.DEVICE, Arm.REMOTE} & set(options.arms)
    if options.base_url is not None:
        if started:
            raise ConfigurationError(
                f"arms {', '.join(sorted(started))} need servers of their own; leave out base_url"
            )
        yield from _attached(options, corpus, stages, embedder)
        return
    host_bytes = None
    if started:
        with ExitStack() as stack:
            bed = _served(options, corpus, stages, embedder, stack, _encoder_tiers(options))
            host_bytes = _tight_host_bytes(bed, options)
            _remember(bed.memory, OTHERS, corpus, options, stages, _others(bed, host_bytes))
            encoded = bed.encoded + encode_waiting(bed.memory, stages)
        with ExitStack() as stack:
            tiers = {"disk_path": options.folder / "kv", "host_bytes": host_bytes}
            bed = _served(options, corpus, stages, embedder, stack, tiers)
            bed.encoded = encoded
            _further_servers(bed, options, host_bytes, stages, stack)
            yield bed
        return
    with ExitStack() as stack:
        tiers = {"disk_path": options.folder / "kv"}
        yield _served(options, corpus, stages, embedder, stack, tiers)


@contextmanager
def serving(options: BedOptions, stages: Stages) -> Iterator[Engine]:
    """A server alone, its disk tier in the options' folder; the running one if there is one."""
    from inferscale_sdk.engines.vllm import VLLMEngine

    with ExitStack() as stack:
        if options.base_url is None:
            tiers = {"disk_path": options.folder / "kv"}
            yield _start(options, stages, "server", stack, tiers)
        else:
            engine = stack.enter_context(VLLMEngine(options.base_url))
            check_engine(engine)
            yield engine


def _attached(
    options: BedOptions, corpus: Corpus, stages: Stages, embedder: Embedder
) -> Iterator[Bed]:
    from inferscale_sdk.engines.vllm import VLLMEngine

    assert options.base_url is not None
    running = VLLMEngine(options.base_url, exact_reports=True, timeout_seconds=_PATIENCE_SECONDS)
    with running as engine, ExitStack() as stack:
        yield _filled(engine, options, corpus, stages, embedder, stack)


def _served(
    options: BedOptions,
    corpus: Corpus,
    stages: Stages,
    embedder: Embedder,
    stack: ExitStack,
    tiers: dict[str, Any],
) -> Bed:
    engine = _start(options, stages, "server", stack, tiers)
    return _filled(engine, options, corpus, stages, embedder, stack)


def _start(
    options: BedOptions, stages: Stages, name: str, stack: ExitStack, tiers: dict[str, Any]
) -> Engine:
    from inferscale_sdk.engines.vllm import VLLMEngine

    with stages.stage("start", f"Starting vLLM on this machine ({name})"):
        engine = stack.enter_context(
            VLLMEngine.launch(
                options.model,
                persist="disk_path" in tiers,
                log_path=options.folder / f"{name}.log",
                kv_cache_gib=options.kv_cache_gib,
                exact_reports=True,
                timeout_seconds=_PATIENCE_SECONDS,
                **tiers,
            )
        )
    check_engine(engine)
    return engine


def check_engine(engine: Engine) -> None:
    """Make sure that there is injection to measure.

    Raises:
        IncompatibleModel: The engine cannot inject.
    """
    info = engine.info()
    if not info.can_inject:
        raise IncompatibleModel(f"{info.model} cannot take injected memory: {info.reason}")


def _filled(
    engine: Engine,
    options: BedOptions,
    corpus: Corpus,
    stages: Stages,
    embedder: Embedder,
    stack: ExitStack,
) -> Bed:
    check_engine(engine)
    # No threads of our own: the client must not compete with the server while it is measured.
    memory = stack.enter_context(
        Memory(
            engine,
            path=options.folder / "memory",
            embedder=embedder,
            window=bench_window(),
            background=False,
            multi_user=True,
            live_facts=0,
        )
    )
    _remember(memory, ASKED, corpus, options, stages, options.facts)
    bed = Bed(memory, engine)
    bed.encoded = encode_waiting(memory, stages)
    return bed


def bench_window() -> WindowStrategy:
    """Twenty facts behind twenty others: encoded soonest, and serving knows no window."""
    return PrecedingTurns(20, 20)


def _remember(
    memory: Memory, user: str, corpus: Corpus, options: BedOptions, stages: Stages, n: int
) -> None:
    there = memory.count(user_id=user)
    if there >= n:
        return
    with stages.stage("remember", f"Remembering {n - there} facts of {user}"):
        start = there + (0 if user == ASKED else options.facts)
        texts = corpus.facts(n - there, start=start)
        memory.add_facts([NewFact(text, f"bench-{user}") for text in texts], user_id=user)


# -- tiers ---------------------------------------------------------------------------------


def _remote(options: BedOptions) -> str:
    return options.remote_url or (options.folder / "remote").absolute().as_uri()


def _encoder_tiers(options: BedOptions) -> dict[str, Any]:
    """Every tier that will be measured has everything, before the first request goes out."""
    tiers: dict[str, Any] = {"disk_path": options.folder / "kv"}
    if Arm.REMOTE in options.arms:
        tiers["connector_config"] = {"remote_url": _remote(options), "write_policy": "through"}
    return tiers


def _tight_host_bytes(bed: Bed, options: BedOptions) -> int:
    """Host memory for one request of the largest k: what is asked for next pushes it out."""
    plan = bed.memory.prepare("?", top_k=options.max_k, user_id=ASKED, max_tokens=64)
    facts = bed.memory.get_all(user_id=ASKED, limit=options.facts)
    longest = sorted((len(f.text) for f in facts), reverse=True)[: options.max_k]
    mean = sum(len(f.text) for f in facts) / max(1, len(facts))
    stretch = sum(longest) / max(1.0, mean * len(longest))
    tokens = len(plan.token_ids) * stretch
    return max(8 * _MIB, round(_ROOM * tokens * bed.engine.info().bytes_per_token))


def _others(bed: Bed, host_bytes: int) -> int:
    """How many facts of others fill host memory."""
    plan = bed.memory.prepare("?", top_k=20, user_id=ASKED, max_tokens=64)
    per_fact = max(1.0, plan.memory_tokens / max(1, len(plan.fact_ids)))
    return round(1.3 * host_bytes / (per_fact * max(1, bed.engine.info().bytes_per_token))) + 8


def _further_servers(
    bed: Bed, options: BedOptions, host_bytes: int, stages: Stages, stack: ExitStack
) -> None:
    if Arm.DEVICE in options.arms:
        tiers: dict[str, Any] = {
            "disk_path": options.folder / "kv",
            "connector_config": {"device_bytes": options.device_bytes},
        }
        bed.engines[Arm.DEVICE] = _start(options, stages, "device", stack, tiers)
    if Arm.REMOTE in options.arms:
        tiers = {
            "host_bytes": host_bytes,
            "connector_config": {"remote_url": _remote(options)},
        }
        bed.engines[Arm.REMOTE] = _start(options, stages, "remote", stack, tiers)
