"""One request to the embedded engine: what of a plan reaches the model, and what is reported."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from inferscale_sdk.engines.base import Completion, CompletionChunk, EngineInfo, Sampling
from inferscale_sdk.engines.exchange import require_fit, why_text
from inferscale_sdk.engines.transformers.events import Computed, Event, Failed, Finished, Text
from inferscale_sdk.engines.transformers.options import Options, read_options
from inferscale_sdk.engines.wire import Usage, build_report
from inferscale_sdk.errors import EngineError, IncompatibleModel
from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan
from inferscale_sdk.protocol import EncodeAnswer, Reason

__all__ = ["Request", "check_encode"]


@dataclass(slots=True)
class Request:
    """A planned prompt on its way through the model, without threads; shared by sync and async.

    Args:
        plan: What was asked for.
        sampling: How to sample.
        options: What that means here.
        reason: Why the plan's segments are not used, empty if they are.
        stream: Whether somebody watches; then the time to the first token is told.
    """

    plan: PromptPlan
    sampling: Sampling
    options: Options
    reason: str
    stream: bool
    _parts: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)
    _ttft_ms: float | None = None

    @classmethod
    def open(
        cls, info: EngineInfo, plan: PromptPlan, sampling: Sampling | None, *, stream: bool
    ) -> Request:
        """Check a plan against the engine that ``info`` describes.

        Raises:
            ContextOverflow: Prompt and answer do not fit.
            ConfigurationError: ``sampling`` asks for what this engine cannot do.
            EngineError: The prompt is empty.
        """
        sampling = sampling or Sampling()
        options = read_options(sampling)
        if not plan.token_ids:
            raise EngineError("the prompt has no tokens; give at least one")
        require_fit(len(plan.token_ids), sampling.max_tokens, info.max_model_len)
        return cls(plan, sampling, options, why_text(info, plan), stream)

    @property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """What may be injected."""
        return () if self.reason else self.plan.segments

    def start(self) -> None:
        """The request is about to be handed to the engine's thread."""
        self._started = time.perf_counter()

    def feed(self, event: Event) -> CompletionChunk:
        """Take one event; returns its text, and with the last one the finished answer.

        Raises:
            EngineError: The model failed, or the engine was closed.
        """
        if isinstance(event, Failed):
            raise event.error
        assert not isinstance(event, Computed)
        # An answer of nothing but an end token has no text; it is there all the same.
        if self.stream and self._ttft_ms is None:
            self._ttft_ms = (time.perf_counter() - self._started) * 1e3
        if isinstance(event, Text):
            self._parts.append(event.text)
            return CompletionChunk(event.text)
        return CompletionChunk("", completion=self._finish(event))

    def _finish(self, event: Finished) -> Completion:
        injection = event.injection
        loaded = (injection.loaded_tokens or 0) if injection is not None else 0
        usage = Usage(len(self.plan.token_ids), event.n_tokens, cached_tokens=loaded)
        return Completion(
            text="".join(self._parts),
            finish_reason=event.reason,
            report=build_report(
                self.plan, usage, injection, reason=self.reason, ttft_ms=self._ttft_ms
            ),
            completion_tokens=event.n_tokens,
        )


def check_encode(info: EngineInfo, plan: EncodePlan) -> EncodeAnswer | None:
    """``None`` if a plan can be encoded, else the answer that says why not.

    Raises:
        IncompatibleModel: The engine cannot inject.
        ContextOverflow: The prompt does not fit.
    """
    if not info.can_inject:
        raise IncompatibleModel(f"facts cannot be encoded: {info.reason}")
    require_fit(len(plan.token_ids), 0, info.max_model_len)
    captures = plan.op.captures
    outside = max(span.stop for span in captures) > len(plan.token_ids)
    twice = len({span.key for span in captures}) < len(captures)
    reason = Reason.MALFORMED if outside or twice else Reason.OK
    if plan.op.fingerprint != info.fingerprint:
        reason = Reason.WRONG_MODEL
    return EncodeAnswer(failed={span.key: reason for span in captures}) if reason else None
