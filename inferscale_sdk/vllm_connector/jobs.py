"""Scheduler half: one job per request that carries an operation.

A job lives from ``on_new_request`` to ``request_finished``. The scheduler asks it, in this order:
``ready`` (until true), ``claim``, ``allocated``, then ``step`` for each engine step that computes
some of its prompt, and at the end ``answer``. After a preemption it starts again at ``ready``.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.protocol import (
    PROBE_TOKENS,
    EncodeAnswer,
    EncodeOp,
    ForgetAnswer,
    ForgetOp,
    InjectAnswer,
    InjectOp,
    PingAnswer,
    ProbeVerdict,
    Reason,
    Refusal,
    StatsAnswer,
    StatsOp,
    salt_matches,
)
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.metadata import (
    PROBE_KEY,
    CaptureStep,
    Hello,
    Loaded,
    LoadPlan,
    Piece,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from inferscale_sdk.vllm_connector.config import ConnectorConfig
    from inferscale_sdk.vllm_connector.identity import ModelIdentity

__all__ = [
    "Core",
    "EncodeJob",
    "ForgetJob",
    "InjectJob",
    "Job",
    "PingJob",
    "ProbeJob",
    "RefusedJob",
    "StatsJob",
]


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
    forget: list[str] = field(default_factory=list)
    loads: list[LoadPlan] = field(default_factory=list)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def greet(self, hello: Hello) -> None:
        """A worker has seen the loaded model."""
        self.hello = hello
        self.index.world_size = hello.world_size
        if hello.text_only_reason:
            self.verdict = ProbeVerdict(status="text_only", reason=hello.text_only_reason)

    def judge(self, verdict: ProbeVerdict) -> None:
        """One rank's probe is done; the worst verdict stands."""
        if self.verdict.status != "text_only":
            self.verdict = verdict

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


class Job:
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

    def forgotten(self, key: str, existed: bool) -> None:
        """One rank dropped a key."""

    @property
    def outstanding(self) -> bool:
        """Whether the workers still have to report on something this job was told to do."""
        return False

    def close(self) -> None:
        """The request is over: let go of everything."""

    def answer(self) -> BaseModel:
        """What the response carries."""
        raise NotImplementedError


class RefusedJob(Job):
    """An operation that cannot be carried out; the request is served as plain text."""

    def __init__(self, core: Core, request_id: str, reason: Reason, message: str) -> None:
        super().__init__(core, request_id, ())
        self._refusal = Refusal(reason=reason, message=message)
        core.count(f"refused_{reason.value}")

    def ready(self) -> bool:
        return True

    def answer(self) -> Refusal:
        return self._refusal


class PingJob(Job):
    """Identity and state."""

    def answer(self) -> PingAnswer:
        hello, identity = self.core.hello, self.core.identity
        assert hello is not None
        return PingAnswer(
            sdk_version=identity.sdk_version,
            fingerprint=identity.fingerprint,
            model=identity.model,
            block_size=identity.block_size,
            max_model_len=identity.max_model_len,
            dtype=hello.dtype,
            n_layers=hello.n_layers,
            bytes_per_token=hello.bytes_per_token,
            probe=self.core.verdict,
            probe_token_id=identity.probe_token_id,
            tiers={"host": self.core.index.stats()},
        )


class StatsJob(Job):
    """Counters and earlier reports."""

    def __init__(self, core: Core, request_id: str, op: StatsOp) -> None:
        super().__init__(core, request_id, ())
        self._op = op

    def answer(self) -> StatsAnswer:
        found = {i: self.core.reports[i] for i in self._op.report_ids if i in self.core.reports}
        return StatsAnswer(
            counters=dict(self.core.counters),
            tiers={"host": self.core.index.stats()},
            reports=found,
        )


class ForgetJob(Job):
    """Drop keys everywhere; answered when every rank has done it."""

    def __init__(self, core: Core, request_id: str, op: ForgetOp) -> None:
        super().__init__(core, request_id, ())
        self._pending = dict.fromkeys(op.keys, 0)
        self._existed: set[str] = set()
        self._sent = False

    def ready(self) -> bool:
        if not super().ready():
            return False
        if not self._sent:
            self._sent = True
            self.core.index.remove(self._pending)
            self.core.forget.extend(self._pending)
        return not self._pending

    def forgotten(self, key: str, existed: bool) -> None:
        if key not in self._pending:
            return
        if existed:
            self._existed.add(key)
        self._pending[key] += 1
        if self._pending[key] >= self.core.index.world_size:
            del self._pending[key]

    def answer(self) -> ForgetAnswer:
        self.core.count("forgotten_segments", len(self._existed))
        return ForgetAnswer(forgotten=len(self._existed))


class _CapturingJob(Job):
    """A job that wants spans of its own prompt kept."""

    def __init__(
        self, core: Core, request_id: str, prompt: Sequence[int], spans: Sequence[Span]
    ) -> None:
        super().__init__(core, request_id, prompt)
        self._spans = {span.key: span for span in spans}
        self._outcome: dict[str, Reason] = {}
        self._started = False

    def step(self, first: int, last: int, block_ids: tuple[int, ...]) -> CaptureStep | None:
        if not self._started:
            self._started = True
            # Tokens taken from the prefix cache are never computed here, so their spans are lost.
            for span in self._spans.values():
                if span.start < first:
                    self._outcome[span.key] = Reason.INCOMPLETE
        spans = tuple(s for s in self._spans.values() if s.key not in self._outcome)
        if not any(span.start < last and span.stop > first for span in spans):
            return None
        return CaptureStep(self.request_id, block_ids, first, last, spans)

    def captured(self, key: str, reason: Reason) -> None:
        self._outcome[key] = reason
        self.core.count("captured_segments" if not reason else "failed_captures")


class EncodeJob(_CapturingJob):
    """Keep spans of the prompt as segments."""

    def __init__(self, core: Core, request_id: str, prompt: Sequence[int], op: EncodeOp) -> None:
        spans = [
            Span(c.key, c.start, c.stop, token_digest(prompt[c.start : c.stop]))
            for c in op.captures
        ]
        super().__init__(core, request_id, prompt, spans)

    def answer(self) -> EncodeAnswer:
        outcome = {key: self._outcome.get(key, Reason.INCOMPLETE) for key in self._spans}
        return EncodeAnswer(
            stored=tuple(key for key, reason in outcome.items() if not reason),
            failed={key: reason for key, reason in outcome.items() if reason},
        )


class ProbeJob(_CapturingJob):
    """Prove the rotation with one token repeated."""

    def __init__(self, core: Core, request_id: str, prompt: Sequence[int]) -> None:
        span = Span(f"{PROBE_KEY}:{request_id}", 0, PROBE_TOKENS, "")
        super().__init__(core, request_id, prompt, [span])

    def answer(self) -> ProbeVerdict:
        return self.core.verdict


class InjectJob(Job):
    """Inject segments, as far as they are resident and their tokens are the prompt's."""

    def __init__(
        self, core: Core, request_id: str, prompt: Sequence[int], op: InjectOp, salt: str | None
    ) -> None:
        super().__init__(core, request_id, prompt)
        self.op = op
        self._keys = [segment.key for segment in op.segments]
        self._reason = self._gate(salt)
        self._refused = bool(self._reason)
        self._waiting: set[str] | None = None
        self._deadline = 0.0
        self._pinned: list[str] = []
        self._local = 0
        self._learn: Span | None = None
        self._answer: dict[str, Any] = {}
        self._ranks_loaded = 0

    def _gate(self, salt: str | None) -> Reason:
        if self.op.fingerprint != self.core.identity.fingerprint:
            return Reason.WRONG_MODEL
        if not salt:
            return Reason.NO_SALT
        if not salt_matches(salt, self._keys):
            return Reason.WRONG_SALT
        return self.core.why_no_injection()

    def ready(self) -> bool:
        if self._refused:
            return True
        if self._waiting is None:
            self._pinned = self.core.index.pin(self._keys)
            self._waiting = self.core.index.fetch(self._keys)
            self._deadline = time.monotonic() + self.core.config.load_timeout_seconds
        if self._waiting:
            answered = self._waiting - self.core.index.unanswered(self._waiting)
            self._pinned += self.core.index.pin(answered)
            self._waiting -= answered
        if not self._waiting:
            return True
        if time.monotonic() < self._deadline:
            return False
        self._reason = Reason.LOAD_TIMEOUT
        return True

    def claim(self, n_local: int) -> int:
        self._local = n_local
        if self._refused:
            return 0
        if self._reason is not Reason.LOAD_TIMEOUT:
            self._reason = Reason.OK
        end, missing = self._matching_prefix()
        self._answer = {"missing_keys": tuple(missing)}
        # At least one prompt token must be left for the model to compute.
        claimed = max(0, min(end, len(self.prompt) - 1) - n_local)
        first = self.op.segments[0]
        self._learn = None
        if end == 0 and n_local == 0 and first.kind == "preamble":
            digest = token_digest(self.prompt[: first.n_tokens])
            self._learn = Span(first.key, 0, first.n_tokens, digest)
        return claimed

    def _matching_prefix(self) -> tuple[int, list[str]]:
        """Tokens that resident, matching segments cover from position 0; keys not to be had."""
        position, matched = 0, 0
        missing = []
        broken = False
        for segment in self.op.segments:
            info = self.core.index.get(segment.key)
            stop = position + segment.n_tokens
            if info is None:
                missing.append(segment.key)
                self._reason = self._reason or self.core.index.why_absent(segment.key)
                broken = True
            elif not broken:
                own = token_digest(self.prompt[position:stop])
                if (info.n_tokens, info.token_digest) == (segment.n_tokens, own):
                    matched = stop
                else:
                    self._reason = Reason.TOKEN_MISMATCH
                    broken = True
            position = stop
        return matched, missing

    def allocated(self, block_ids: tuple[int, ...], n_external: int) -> None:
        if n_external == 0:
            self._unpin()
            return
        first, last = self._local, self._local + n_external
        pieces = []
        position = 0
        for segment in self.op.segments:
            start, stop = max(position, first), min(position + segment.n_tokens, last)
            if start < stop:
                pieces.append(Piece(segment.key, start - position, stop - position, start))
            position += segment.n_tokens
        self._ranks_loaded = 0
        self.core.count("claimed_tokens", n_external)
        self._answer |= {"claimed_tokens": n_external, "loaded_tokens": None}
        self.core.loads.append(LoadPlan(self.request_id, block_ids, first, last, tuple(pieces)))

    def step(self, first: int, last: int, block_ids: tuple[int, ...]) -> CaptureStep | None:
        learn = self._learn
        if learn is None or first >= learn.stop or self._refused:
            return None
        return CaptureStep(self.request_id, block_ids, first, last, (learn,))

    def captured(self, key: str, reason: Reason) -> None:
        if not reason:
            self._answer["learned_keys"] = (key,)
            self.core.count("learned_preambles")

    def loaded(self, report: Loaded) -> None:
        self._ranks_loaded += 1
        if report.reason:
            self._reason = report.reason
            self.core.count("failed_loads")
        if self._ranks_loaded < self.core.index.world_size:
            return
        self._answer["loaded_tokens"] = report.n_tokens
        self._answer["loaded_keys"] = report.keys
        self.core.count("loaded_tokens", report.n_tokens)
        self._unpin()

    def _unpin(self) -> None:
        self.core.index.release(self._pinned)
        self._pinned = []
        self._waiting = None  # a preempted request looks everything up again

    @property
    def outstanding(self) -> bool:
        return self._answer.get("loaded_tokens", 0) is None

    def close(self) -> None:
        self._unpin()
        self.core.count("injections" if self._answer.get("claimed_tokens") else "text_injections")
        if self._reason:
            self.core.count(f"reason_{self._reason.value}")

    def answer(self) -> InjectAnswer:
        answer = InjectAnswer(reason=self._reason, local_tokens=self._local, **self._answer)
        if self.op.report_id:
            self.core.remember(self.op.report_id, answer)
        return answer
