"""Scheduler half: reads operations off requests, decides what is claimed, never touches tensors.

vLLM calls, per request: ``on_new_request``; ``match`` in every step until it gives a number;
``allocated`` when the request got blocks; ``finished`` once. Per step: ``commands`` after all
requests were scheduled, ``absorb`` when the workers have reported.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_sdk.errors import ConfigurationError, ProtocolError
from inferscale_sdk.kv.fingerprint import adapter_fingerprint
from inferscale_sdk.protocol import (
    FIELD,
    PROBE_TOKENS,
    EncodeOp,
    ForgetOp,
    InjectOp,
    LocateOp,
    Operation,
    PingOp,
    PrefetchOp,
    ProbeOp,
    Reason,
    StatsOp,
    parse_operation,
    verify,
)
from inferscale_sdk.tiers.deletions import DeletionLog
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.jobs.base import Core, Job
from inferscale_sdk.vllm_connector.jobs.capture import EncodeJob, ProbeJob
from inferscale_sdk.vllm_connector.jobs.control import (
    ForgetJob,
    LocateJob,
    PingJob,
    PrefetchJob,
    RefusedJob,
    StatsJob,
)
from inferscale_sdk.vllm_connector.jobs.inject import InjectJob
from inferscale_sdk.vllm_connector.metadata import (
    Captured,
    CaptureStep,
    Commands,
    Loaded,
    LoadPlan,
    WorkerReport,
)
from inferscale_sdk.vllm_connector.metrics import SchedulerMeter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from inferscale_sdk.vllm_connector.config import ConnectorConfig
    from inferscale_sdk.vllm_connector.identity import ModelIdentity

__all__ = ["SchedulerHalf"]

log = logging.getLogger(__name__)


class SchedulerHalf:
    """One per engine."""

    def __init__(
        self, config: ConnectorConfig, identity: ModelIdentity, *, server_id: str = ""
    ) -> None:
        self._config = config
        folder = config.disk_path
        self._deletions = None if folder is None else DeletionLog(folder, author=server_id)
        index = SegmentIndex(
            config.host_bytes, eviction=config.eviction, owner_bytes=config.owner_bytes
        )
        self._core = Core(config, identity, index)
        self.meter = SchedulerMeter(self._core)
        self._jobs: dict[str, Job] = {}
        self._leaving: dict[str, Job] = {}
        self._over: list[str] = []
        self._adapters: dict[tuple[object, ...], str] = {}

    # -- per request -------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Read the operation off a request, if it carries one."""
        params = request.kv_transfer_params
        if not params or FIELD not in params:
            return
        self._heed_deletions()
        request_id = request.request_id
        try:
            job = self._job(request, params[FIELD])
        except _Refused as refused:
            job = RefusedJob(self._core, request_id, refused.reason, str(refused))
        self._jobs[request_id] = job

    def _heed_deletions(self) -> None:
        """Let go of what other servers on the same folder were told to forget."""
        if self._deletions is not None and (keys := self._deletions.unseen()):
            dropped = self._core.index.deleted_elsewhere(keys)
            self._core.count("forgotten_segments", dropped)

    def _job(self, request: Request, obj: object) -> Job:
        core, request_id = self._core, request.request_id
        op = self._admit(request, obj)
        prompt = list(request.prompt_token_ids or ())
        match op:
            case InjectOp():
                total = sum(segment.n_tokens for segment in op.segments)
                if total > len(prompt):
                    raise _Refused(
                        Reason.MALFORMED,
                        f"segments cover {total} tokens but the prompt has {len(prompt)}",
                    )
                fingerprint = self._fingerprint(request)
                return InjectJob(core, request_id, prompt, op, request.cache_salt, fingerprint)
            case EncodeOp():
                self._check_captures(op, len(prompt))
                return EncodeJob(core, request_id, prompt, op)
            case ProbeOp():
                if len(prompt) < PROBE_TOKENS or len(set(prompt[:PROBE_TOKENS])) != 1:
                    raise _Refused(
                        Reason.MALFORMED,
                        f"a probe's prompt is one token repeated {PROBE_TOKENS} times",
                    )
                return ProbeJob(core, request_id, prompt)
            case ForgetOp():
                return ForgetJob(core, request_id, op)
            case PrefetchOp():
                return PrefetchJob(core, request_id, op)
            case LocateOp():
                return LocateJob(core, request_id, op)
            case StatsOp():
                return StatsJob(core, request_id, op)
            case PingOp():
                return PingJob(core, request_id, self._fingerprint(request))

    def _admit(self, request: Request, obj: object) -> Operation:
        """Parse and authenticate.

        Raises:
            _Refused: It is malformed, unsigned, or not possible on this request or model.
        """
        try:
            op = parse_operation(obj)
        except ProtocolError as error:
            reason = Reason.UNSUPPORTED_VERSION if "version" in str(error) else Reason.MALFORMED
            raise _Refused(reason, str(error)) from None
        secret = self._config.secret
        if secret is not None and not verify(op, request.prompt_token_ids or (), secret):
            raise _Refused(
                Reason.BAD_SIGNATURE,
                "this server has a secret and the operation is not signed with it",
            )
        if isinstance(op, InjectOp | EncodeOp | ProbeOp):
            if not request.prompt_token_ids or request.mm_features:
                raise _Refused(Reason.MALFORMED, "the prompt must be plain token ids")
            if isinstance(op, EncodeOp) and op.fingerprint != (own := self._fingerprint(request)):
                raise _Refused(
                    Reason.WRONG_MODEL,
                    f"encoding is for model {op.fingerprint}, this request runs on {own}",
                )
            hello = self._core.hello
            if hello is not None and hello.text_only_reason:
                raise _Refused(Reason.TEXT_ONLY_MODEL, hello.text_only_reason)
        return op

    def _fingerprint(self, request: Request) -> str:
        """Of the model that this request runs on, its LoRA adapter included.

        Raises:
            _Refused: The adapter's weights cannot be read, so it cannot be told from others.
        """
        lora = request.lora_request
        if lora is None:
            return self._core.identity.fingerprint
        folder = Path(lora.lora_path)
        try:
            # An adapter may be replaced in place: its files' times are part of the question.
            files = tuple(sorted((f.name, f.stat().st_mtime_ns) for f in folder.iterdir()))
            asked = (lora.lora_name, lora.lora_path, files)
            known = self._adapters.get(asked)
            if known is None:
                base = self._core.identity.fingerprint
                known = adapter_fingerprint(base, lora.lora_name, folder)
                self._adapters[asked] = known
        except (ConfigurationError, OSError) as error:
            raise _Refused(Reason.ADAPTER, f"LoRA {lora.lora_name!r}: {error}") from None
        return known

    @staticmethod
    def _check_captures(op: EncodeOp, n_prompt: int) -> None:
        keys = [capture.key for capture in op.captures]
        if len(set(keys)) != len(keys):
            raise _Refused(Reason.MALFORMED, "a key is captured twice in one request")
        ordered = sorted(op.captures, key=lambda capture: capture.start)
        if any(after.start < before.stop for before, after in pairwise(ordered)):
            # Each span is a copy: 4,096 of the whole prompt would be more memory than there is.
            raise _Refused(Reason.MALFORMED, "captures overlap; a token belongs to one segment")
        furthest = ordered[-1].stop
        if furthest > n_prompt:
            raise _Refused(
                Reason.MALFORMED,
                f"a capture ends at {furthest} but the prompt has {n_prompt} tokens",
            )

    def match(self, request: Request, n_local: int) -> int | None:
        """Tokens beyond the first ``n_local`` to be taken from stored KV; ``None``: ask again."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return 0
        if not job.ready():
            return None
        return job.claim(n_local)

    def allocated(self, request: Request, block_ids: tuple[int, ...], n_external: int) -> None:
        """The request got blocks, and ``n_external`` tokens of its claim were accepted."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return
        try:
            job.allocated(block_ids, n_external)
        except Exception:
            if not n_external:
                raise
            # vLLM counts on these tokens: an empty plan fails in the worker, which reports the
            # blocks, so that they are computed after all.
            log.exception("inferscale: planning a load failed; the tokens are computed")
            n_tokens = len(job.prompt)
            self._core.loads.append(LoadPlan(request.request_id, block_ids, 0, n_tokens, ()))

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The request is over, answered or aborted; what its response carries."""
        job = self._jobs.pop(request.request_id, None)
        if job is None:
            return None
        self._over.append(request.request_id)
        answer = job.answer()
        if job.outstanding:
            # The request ended in the step of its load; the workers' report is on its way.
            self._leaving[request.request_id] = job
        else:
            job.close()
        return {FIELD: answer.model_dump(mode="json")}

    # -- per step ----------------------------------------------------------------------------

    def commands(self, output: SchedulerOutput) -> Commands:
        """What the workers have to do in this step."""
        core = self._core
        self._heed_deletions()
        stage, evict = core.index.take_commands()
        for order in core.forget:
            for job in self._jobs.values():
                job.give_up(order.keys)
        captures: tuple[CaptureStep, ...] = ()
        try:
            captures = tuple(self._captures(output))
        except Exception:  # a lost capture costs a later encoding; a lost load would cost an answer
            log.exception("inferscale: planning captures failed")
        commands = Commands(
            forget=tuple(core.forget),
            locate=tuple(core.locate),
            evict=evict,
            stage=stage,
            loads=tuple(core.loads),
            captures=captures,
            drop_captures=tuple(self._over),
            n_requests=len(output.num_scheduled_tokens),
            idle=output.total_num_scheduled_tokens == 0,
        )
        core.forget.clear()
        core.locate.clear()
        core.loads.clear()
        self._over.clear()
        return commands

    def _captures(self, output: SchedulerOutput) -> Iterator[CaptureStep]:
        state = output.kv_connector_block_state
        if state is None or not self._jobs:
            return
        for request_id, first in _computed(output):
            job = self._jobs.get(request_id)
            if job is None:
                continue
            last = min(first + output.num_scheduled_tokens[request_id], len(job.prompt))
            if first >= last:
                continue  # decoding: nothing of the prompt is computed any more
            blocks = state.get_block_ids(request_id)
            if blocks is not None:
                step = job.step(first, last, tuple(blocks[0]))
                if step is not None:
                    yield step

    def absorb(self, report: WorkerReport) -> None:
        """Take in what the workers report."""
        core = self._core
        for hello in report.hello:
            core.greet(hello)
        for staged in report.staged:
            core.index.add(staged)
        for captured in report.captured:
            self._absorb_capture(captured)
        for loaded in report.loaded:
            self._absorb_load(loaded)
        # After captures and reads, of which those that came before a deletion are still refused.
        for forgotten in report.forgotten:
            if (job := core.orders.get(forgotten.serial)) is not None:
                job.forgotten(forgotten)
        for located in report.located:
            if (job := core.orders.get(located.serial)) is not None:
                job.located(located)
        for probed in report.probes:
            core.judge(probed)
        for name, value in report.counters.items():
            core.count(name, value)

    def _absorb_capture(self, captured: Captured) -> None:
        reason = self._core.index.add(captured)
        job = self._jobs.get(captured.request_id)
        if reason is None or job is None:
            return
        # Not resident for want of room, but safe below: stored all the same.
        below = reason is Reason.STORE_FAILED and self._config.has_lower_tier
        job.captured(captured.key, Reason.OK if below else reason)

    def _absorb_load(self, loaded: Loaded) -> None:
        job = self._jobs.get(loaded.request_id)
        if job is not None:
            job.loaded(loaded)
            return
        job = self._leaving.get(loaded.request_id)
        if job is not None:
            job.loaded(loaded)
            if not job.outstanding:
                del self._leaving[loaded.request_id]
                job.close()
                job.answer()  # the final report, for ``stats``


class _Refused(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _computed(output: SchedulerOutput) -> Iterator[tuple[str, int]]:
    """Requests of this step with the number of tokens computed before it."""
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = output.scheduled_cached_reqs
    yield from zip(cached.req_ids, cached.num_computed_tokens, strict=True)
