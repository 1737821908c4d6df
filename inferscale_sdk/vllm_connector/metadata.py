"""Messages between the scheduler half and the worker half, once per engine step each way.

The halves share a process at tensor-parallel size 1 and do not beyond it, so these messages are
plain values. ``Commands`` go down with ``build_connector_meta``; ``WorkerReport`` comes up with
``build_connector_worker_meta``. The scheduler half decides what is resident in the workers' host
tier; the workers only carry out. A key is known to be resident when *every* rank has said so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from inferscale_sdk.injection.pieces import Piece
from inferscale_sdk.protocol import ProbeVerdict, Reason

__all__ = [
    "CaptureStep",
    "Captured",
    "Commands",
    "Forgotten",
    "Hello",
    "LoadPlan",
    "Loaded",
    "Located",
    "Order",
    "Probed",
    "Span",
    "Staged",
    "WorkerReport",
]

PROBE_KEY = "probe"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One request's injection: ``pieces`` cover prompt tokens ``first`` to ``last``, gapless."""

    request_id: str
    block_ids: tuple[int, ...]
    first: int
    last: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt tokens ``start`` to ``stop`` are wanted as segment ``key`` of ``owner``'s.

    Averaged with segment ``beside``, if that names one.
    """

    key: str
    start: int
    stop: int
    token_digest: str
    owner: str = ""
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """In this step the engine computes prompt tokens ``first`` to ``last`` of a capturing request.

    ``spans`` are all those the request still waits for, also outside this step's tokens.
    """

    request_id: str
    block_ids: tuple[int, ...]
    first: int
    last: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Something that every rank does with each of ``keys``, and reports on with ``serial``.

    One key may be in several orders at once, so what a rank says counts for its own order only.
    """

    serial: int
    keys: tuple[str, ...]


@dataclass
class Commands(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to worker, in order of execution: load, evict, forget, capture, stage, locate."""

    forget: tuple[Order, ...] = ()
    locate: tuple[Order, ...] = ()
    """Looked for after everything else of the step is done."""
    evict: tuple[str, ...] = ()
    stage: tuple[str, ...] = ()
    loads: tuple[LoadPlan, ...] = ()
    captures: tuple[CaptureStep, ...] = ()
    drop_captures: tuple[str, ...] = ()
    n_requests: int = 0
    """Requests that compute something in this step."""
    idle: bool = False
    """No request computes anything in this step: the worker may wait a moment for its reads."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker knows about the loaded model; sent once, with its first report."""

    n_layers: int
    bytes_per_token: int
    dtype: str
    world_size: int
    text_only_reason: str = ""


@dataclass(frozen=True, slots=True)
class Staged:
    """A key asked for is resident (``reason`` OK), or is not to be had."""

    key: str
    reason: Reason = Reason.OK
    n_tokens: int = 0
    token_digest: str = ""
    nbytes: int = 0
    owner: str = ""
    encode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Captured:
    """A span asked for is stored and resident (``reason`` OK), or was not stored."""

    request_id: str
    key: str
    reason: Reason = Reason.OK
    n_tokens: int = 0
    token_digest: str = ""
    nbytes: int = 0
    owner: str = ""
    encode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load plan was carried out, or failed with ``reason``; the worker's own record.

    ``missing`` are keys that this rank does not have, against what the plan says.
    """

    request_id: str
    n_tokens: int
    keys: tuple[str, ...]
    reason: Reason = Reason.OK
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A key is gone, was never there, or could not be removed from some tier of this rank."""

    serial: int
    key: str
    existed: bool
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """Where a key lies on this rank; nowhere if ``places`` is empty."""

    serial: int
    key: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe of a request found on one rank."""

    request_id: str
    rank: int
    verdict: ProbeVerdict


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Worker to scheduler. Each entry is of one rank; the scheduler half counts ranks."""

    hello: list[Hello] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    captured: list[Captured] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    forgotten: list[Forgotten] = field(default_factory=list)
    located: list[Located] = field(default_factory=list)
    probes: list[Probed] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Put the reports of two ranks together."""
        assert isinstance(other, WorkerReport)
        counters = dict(self.counters)
        for name, value in other.counters.items():
            counters[name] = counters.get(name, 0) + value
        return WorkerReport(
            self.hello + other.hello,
            self.staged + other.staged,
            self.captured + other.captured,
            self.loaded + other.loaded,
            self.forgotten + other.forgotten,
            self.located + other.located,
            self.probes + other.probes,
            counters,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (
            self.hello
            or self.staged
            or self.captured
            or self.loaded
            or self.forgotten
            or self.located
            or self.probes
            or self.counters
        )
