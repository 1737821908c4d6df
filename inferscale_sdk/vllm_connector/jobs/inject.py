"""The job that injects: look up, wait for reads, verify tokens, claim, pin, report."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from inferscale_sdk.injection.match import matching_prefix
from inferscale_sdk.injection.pieces import pieces_between
from inferscale_sdk.kv.key import UNOWNED, token_digest
from inferscale_sdk.protocol import InjectAnswer, InjectOp, Reason, salt_matches
from inferscale_sdk.vllm_connector.jobs.base import Core, Job
from inferscale_sdk.vllm_connector.metadata import CaptureStep, Loaded, LoadPlan, Span

__all__ = ["InjectJob"]


class InjectJob(Job):
    """Inject segments, as far as they are resident and their tokens are the prompt's."""

    def __init__(
        self,
        core: Core,
        request_id: str,
        prompt: Sequence[int],
        op: InjectOp,
        salt: str | None,
        fingerprint: str,
    ) -> None:
        super().__init__(core, request_id, prompt)
        self.op = op
        self._fingerprint = fingerprint
        self._keys = [segment.key for segment in op.segments]
        self._reason = self._gate(salt)
        self._refused = bool(self._reason)
        self._waiting: set[str] | None = None
        self._deadline = 0.0
        self._pinned: list[str] = []
        self._local = 0
        self._learn: Span | None = None
        self._answer: dict[str, Any] = {}
        self._verified = 0
        self._ranks_loaded, self._failed = 0, False

    def _gate(self, salt: str | None) -> Reason:
        if self.op.fingerprint != self._fingerprint:
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
        index = self.core.index
        match = matching_prefix(
            self.op.segments, self.prompt, index.get, index.why_absent, reason=self._reason
        )
        end, self._reason = match.end, match.reason
        self._answer = {"missing_keys": match.missing}
        self._verified = end
        # At least one prompt token must be left for the model to compute.
        claimed = max(0, min(end, len(self.prompt) - 1) - n_local)
        first = self.op.segments[0]
        self._learn = None
        unknown = end == 0 and n_local == 0 and not index.is_forgetting([first.key])
        if unknown and first.kind == "preamble":
            digest = token_digest(self.prompt[: first.n_tokens])
            owner = self.op.owner or UNOWNED
            self._learn = Span(first.key, 0, first.n_tokens, digest, owner)
        return claimed

    def allocated(self, block_ids: tuple[int, ...], n_external: int) -> None:
        if n_external == 0:
            self._unpin()
            return
        first, last = self._local, self._local + n_external
        pieces = pieces_between(self.op.segments, first, last)
        self._ranks_loaded, self._failed = 0, False
        self.core.count("claimed_tokens", n_external)
        self.core.count("claimed_segments", len(pieces))
        self._answer |= {"claimed_tokens": n_external, "loaded_tokens": None}
        self.core.loads.append(LoadPlan(self.request_id, block_ids, first, last, pieces))

    def step(self, first: int, last: int, block_ids: tuple[int, ...]) -> CaptureStep | None:
        learn = self._learn
        if learn is None or first >= learn.stop or self._refused:
            return None
        return CaptureStep(self.request_id, block_ids, first, last, (learn,))

    def give_up(self, keys: Collection[str]) -> None:
        if self._learn is not None and self._learn.key in keys:
            self._learn = None

    def captured(self, key: str, reason: Reason) -> None:
        if not reason:
            self._answer["learned_keys"] = (key,)
            self.core.count("learned_preambles")

    def loaded(self, report: Loaded) -> None:
        self._ranks_loaded += 1
        if report.reason:
            self._failed = True
            self._reason = report.reason
            self.core.count("failed_loads")
            self.core.index.drop(report.missing)
        if self._ranks_loaded < self.core.index.world_size:
            return
        # What one rank could not write is computed on all of them.
        n_tokens, keys = (0, ()) if self._failed else (report.n_tokens, report.keys)
        self._answer["loaded_tokens"] = n_tokens
        self._answer["loaded_keys"] = keys
        self.core.count("loaded_tokens", n_tokens)
        self.core.count("loaded_segments", len(keys))
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
        ends = accumulate(segment.n_tokens for segment in self.op.segments)
        self.core.count("verified_tokens", self._verified)
        self.core.count("verified_segments", sum(end <= self._verified for end in ends))
        self.core.count("injections" if self._answer.get("claimed_tokens") else "text_injections")
        if self._reason:
            self.core.count(f"reason_{self._reason.value}")

    def answer(self) -> InjectAnswer:
        answer = InjectAnswer(reason=self._reason, local_tokens=self._local, **self._answer)
        if self.op.report_id:
            self.core.remember(self.op.report_id, answer)
        return answer
