"""Jobs that keep spans of their own prompt: ``encode`` and ``probe``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.protocol import PROBE_TOKENS, EncodeAnswer, EncodeOp, ProbeVerdict, Reason
from inferscale_sdk.vllm_connector.jobs.base import Core, Job
from inferscale_sdk.vllm_connector.metadata import PROBE_KEY, CaptureStep, Span

__all__ = ["EncodeJob", "ProbeJob"]


class _CapturingJob(Job):
    """A job that wants spans of its own prompt kept."""

    def __init__(
        self, core: Core, request_id: str, prompt: Sequence[int], spans: Sequence[Span]
    ) -> None:
        super().__init__(core, request_id, prompt)
        self._spans = {span.key: span for span in spans}
        self._outcome: dict[str, Reason] = {}
        self._started = False

    def ready(self) -> bool:
        # What is captured while its key is being forgotten could not be told from what was before.
        return super().ready() and not self.core.index.is_forgetting(self._spans)

    def give_up(self, keys: Collection[str]) -> None:
        for key in self._spans.keys() & keys:
            self._outcome.setdefault(key, Reason.INCOMPLETE)

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
            Span(c.key, c.start, c.stop, token_digest(prompt[c.start : c.stop]), op.owner, c.beside)
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
