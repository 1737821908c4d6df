"""One request to a vLLM server and what came of it, without I/O; shared by sync and async."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferscale_sdk.engines.base import Completion, EngineInfo, Sampling
from inferscale_sdk.engines.wire import (
    Usage,
    answer_of,
    build_report,
    chat_body,
    transfer_fields,
    wire_messages,
    without_segments,
)
from inferscale_sdk.errors import ContextOverflow, EngineError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.protocol import InjectAnswer, Refusal
from inferscale_sdk.types import InjectionReport

__all__ = ["Exchange", "require_fit", "why_text"]

_NO_REPORT = "the server gave no report of this request"


def require_fit(n_tokens: int, reserve: int, limit: int) -> None:
    """Raise ``ContextOverflow`` unless prompt and answer fit into the model's context."""
    if n_tokens + reserve > limit:
        raise ContextOverflow(
            n_tokens + reserve,
            limit,
            f"{reserve} of them are kept for the answer; recall fewer facts, shorten the "
            "conversation or lower max_tokens",
        )


def why_text(info: EngineInfo, plan: PromptPlan) -> str:
    """Why a plan's segments cannot be used by an engine, empty if they can or there are none."""
    if plan.segments and not info.can_inject:
        return info.reason
    if plan.segments and plan.fingerprint != info.fingerprint:
        return (
            f"the prompt was planned for model {plan.fingerprint[:12]}, "
            f"the engine has {info.fingerprint[:12]}"
        )
    return ""


@dataclass(slots=True)
class Exchange:
    """A request's memory on its way out, and what became of it.

    Args:
        plan: What was asked for.
        model: Name of the served model.
        fields: The fields of the request that carry tokens, segments and salt.
        messages: The ``messages`` of the request.
        reason: Why the plan's segments are not sent, empty if they are.
        report_id: Under which the server files its report of a streamed request.
        exact: Whether the report must be the server's own.
        stream: Whether the answer is streamed.
    """

    plan: PromptPlan
    model: str
    fields: dict[str, Any]
    messages: list[dict[str, Any]]
    reason: str = ""
    report_id: str | None = None
    exact: bool = False
    stream: bool = False
    text: str = ""
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    ttft_ms: float | None = None
    _started: float = 0.0

    @classmethod
    def open(
        cls,
        info: EngineInfo,
        plan: PromptPlan,
        *,
        max_tokens: int,
        secret: bytes | None,
        stream: bool,
        exact: bool,
    ) -> Exchange:
        """Prepare a request for the engine that ``info`` describes.

        Raises:
            ContextOverflow: Prompt and answer do not fit.
        """
        require_fit(len(plan.token_ids), max_tokens, info.max_model_len)
        reason = why_text(info, plan)
        sent = without_segments(plan) if reason else plan
        report_id = secrets.token_hex(8) if stream and sent.segments else None
        return cls(
            plan=plan,
            model=info.model,
            fields=transfer_fields(sent, op=sent.operation(report_id), secret=secret),
            # A server with the connector takes exact tokens; of any other nothing is known.
            messages=wire_messages(sent, in_full=not info.fingerprint),
            reason=reason,
            report_id=report_id,
            exact=exact,
            stream=stream,
        )

    def body(self, sampling: Sampling) -> dict[str, Any]:
        """The whole chat request.

        Raises:
            ConfigurationError: ``sampling.extra`` sets a field that belongs to the engine.
        """
        return chat_body(
            self.model, sampling, fields=self.fields, messages=self.messages, stream=self.stream
        )

    @property
    def injects(self) -> bool:
        """Whether segments are sent."""
        return bool(self.plan.segments) and not self.reason

    # -- whole answers ---------------------------------------------------------------------

    def received(self, response: Mapping[str, Any]) -> InjectAnswer | Refusal | None:
        """Take a whole response; returns what the connector said in it."""
        choice = _first_choice(response)
        self.usage = Usage.of(response)
        self.text = (choice.get("message") or {}).get("content") or choice.get("text") or ""
        self.finish_reason = choice.get("finish_reason") or ""
        return answer_of(response, InjectAnswer) if self.injects else None

    # -- streams ---------------------------------------------------------------------------

    def start(self) -> None:
        """The request is about to be written."""
        self._started = time.perf_counter()

    def spoke(self) -> None:
        """A token of the answer has come; the first one counts."""
        if self.ttft_ms is None:
            self.ttft_ms = (time.perf_counter() - self._started) * 1e3

    def feed(self, event: Mapping[str, Any]) -> str:
        """Take one event of the stream; returns its text."""
        if event.get("usage"):
            self.usage = Usage.of(event)
        choices = event.get("choices") or []
        if not choices:
            return ""
        delta = choices[0].get("delta") or {}
        self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
        text: str = delta.get("content") or ""
        spoken = text or any(delta.get(k) for k in ("reasoning", "reasoning_content", "tool_calls"))
        # An answer of nothing but an end token has no text; it is there all the same.
        if spoken or self.finish_reason:
            self.spoke()
        self.text += text
        return text

    @property
    def needs_report(self) -> bool:
        """Whether the counts on the stream do not tell what became of the segments."""
        if not self.injects:
            return False
        planned = sum(segment.n_tokens for segment in self.plan.segments)
        cached = self.usage.cached_tokens
        return self.exact or cached is None or cached < min(planned, len(self.plan.token_ids) - 1)

    # -- both ------------------------------------------------------------------------------

    def finish(self, answer: InjectAnswer | Refusal | None, *, raw: Any = None) -> Completion:
        """The finished answer.

        Raises:
            EngineError: The server did not take the exact tokens, or gave no reason to stop.
        """
        if not self.finish_reason:
            raise EngineError("the server ended the answer without saying why; see its log")
        return Completion(
            text=self.text,
            finish_reason=self.finish_reason,
            report=self.report(answer),
            completion_tokens=self.usage.completion_tokens,
            raw=raw,
        )

    def report(self, answer: InjectAnswer | Refusal | None) -> InjectionReport:
        """What became of the memory, from the server's counts and what the connector said.

        Raises:
            EngineError: The server did not take the exact tokens.
        """
        self._check_tokens()
        reason = self.reason
        if answer is None and (self.needs_report if self.stream else self.injects):
            reason = _NO_REPORT
        return build_report(self.plan, self.usage, answer, reason=reason, ttft_ms=self.ttft_ms)

    def _check_tokens(self) -> None:
        sent, counted = len(self.plan.token_ids), self.usage.prompt_tokens
        if self.reason or not counted or counted == sent:
            return
        if self.plan.segments:
            raise EngineError(
                f"the server computed a prompt of {counted} tokens where {sent} were sent; it does "
                "not take kv_transfer_params.prompt_token_ids: use vLLM 0.32 or newer"
            )


def _first_choice(response: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = response.get("choices") or []
    if not choices:
        raise EngineError("the server's response has no choices; is this a vLLM server?")
    first: Mapping[str, Any] = choices[0]
    return first
