"""What all jobs share, and the life of a job.

A job lives from ``on_new_request`` to ``request_finished``. The scheduler asks it, in this order:
``ready`` (until true), ``claim``, ``allocated``, then ``step`` for each engine step that computes
some of its prompt, and at the end ``answer``. After a preemption it starts again at ``ready``.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferscale_sdk.protocol import InjectAnswer, ProbeVerdict, Reason
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.metadata import (
    CaptureStep,
    Forgotten,
    Hello,
    Loaded,
    LoadPlan,
    Located,
    Order,
    Probed,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pydantic import BaseModel

    from inferscale_sdk.vllm_connector.config import ConnectorConfig
    from inferscale_sdk.vllm_connector.identity import ModelIdentity

__all__ = ["Core", "Job"]

MAX_OPEN_PROBES = 64


@dataclass
class Core:
    """What all jobs of one scheduler share."""

    config: ConnectorConfig
    identity: ModelIdentity
    index: SegmentIndex
    hello: Hello | None = None
    verdict: ProbeVerdict = field(default_factory=ProbeVerdict)
    counters: dict[str, int] = field(default_factory=dict)
    reports: OrderedDict[str, InjectAnswer] = field(default_factory=OrderedDict)
    forget: list[Order] = field(default_factory=list)
    locate: list[Order] = field(default_factory=list)
    loads: list[LoadPlan] = field(default_factory=list)
    probes: OrderedDict[str, dict[int, ProbeVerdict]] = field(default_factory=OrderedDict)
    """Of probes that not every rank has judged yet: the verdicts by rank."""
    orders: dict[int, Job] = field(default_factory=dict)
    """By serial, who hears what the ranks say to an order; also when its request was aborted."""
    _serials: Iterator[int] = field(default_factory=itertools.count)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def new_serial(self) -> int:
        """A number that no order to the workers has had before."""
        return next(self._serials)

    def greet(self, hello: Hello) -> None:
        """A worker has seen the loaded model; a rank that cannot inject speaks for all."""
        if self.hello is None or not self.hello.text_only_reason:
            self.hello = hello
        self.index.world_size = hello.world_size
        if hello.text_only_reason:
            self.verdict = ProbeVerdict(status="text_only", reason=hello.text_only_reason)

    def judge(self, probed: Probed) -> None:
        """One rank's probe is done. It takes all ranks to allow injection, and one to forbid it."""
        if self.verdict.status == "text_only":
            return
        verdicts = self.probes.setdefault(probed.request_id, {})
        verdicts[probed.rank] = probed.verdict
        if len(verdicts) >= self.index.world_size or probed.verdict.status == "text_only":
            self.verdict = max(verdicts.values(), key=_badness)
            del self.probes[probed.request_id]
        elif len(self.probes) > MAX_OPEN_PROBES:
            self.probes.popitem(last=False)  # a rank whose probe failed never judges it

    def remember(self, report_id: str, answer: InjectAnswer) -> None:
        """Keep a report for a later ``stats``; the oldest ones go."""
        self.reports[report_id] = answer
        while len(self.reports) > self.config.max_reports:
            self.reports.popitem(last=False)

    def why_no_injection(self) -> Reason:
        """Why this server does not inject at present, or OK."""
        if self.verdict.status == "text_only":
            return Reason.PROBE_FAILED
        if self.config.require_probe and self.verdict.status != "exact":
            return Reason.NOT_PROBED
        return Reason.OK


def _badness(verdict: ProbeVerdict) -> tuple[bool, float]:
    return verdict.status == "text_only", verdict.max_key_error


class Job(ABC):
    """Base: an operation that neither loads nor captures."""

    def __init__(self, core: Core, request_id: str, prompt: Sequence[int]) -> None:
        self.core = core
        self.request_id = request_id
        self.prompt = prompt

    def ready(self) -> bool:
        """Whether the request may be scheduled; ``False`` means ask again in the next step."""
        return self.core.hello is not None

    def claim(self, n_local: int) -> int:
        """Tokens beyond the ``n_local`` first ones that need no prefill."""
        del n_local
        return 0

    def allocated(self, block_ids: tuple[int, ...], n_external: int) -> None:
        """The scheduler gave the request blocks and accepted ``n_external`` of the claim."""

    def step(self, first: int, last: int, block_ids: tuple[int, ...]) -> CaptureStep | None:
        """This step computes prompt tokens ``first`` to ``last``: what to capture of them."""
        del first, last, block_ids
        return None

    def loaded(self, report: Loaded) -> None:
        """One rank carried out (or failed) the load plan."""

    def captured(self, key: str, reason: Reason) -> None:
        """Every rank has spoken on a span of this request."""

    def give_up(self, keys: Collection[str]) -> None:
        """These keys are being forgotten: what this job would still capture of them is not kept."""

    def forgotten(self, report: Forgotten) -> None:
        """One rank dropped a key, or could not."""

    def located(self, report: Located) -> None:
        """One rank looked for a key."""

    @property
    def outstanding(self) -> bool:
        """Whether the workers still have to report on something this job was told to do."""
        return False

    def close(self) -> None:
        """The request is over: let go of everything."""

    @abstractmethod
    def answer(self) -> BaseModel:
        """What the response carries."""
