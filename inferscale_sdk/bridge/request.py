"""One request of a framework on its way out and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from inferscale_sdk.engines.exchange import Exchange
from inferscale_sdk.engines.wire import Usage
from inferscale_sdk.memory.values import PreparedPlan
from inferscale_sdk.types import InjectionReport, InjectionStatus

__all__ = ["BridgedRequest", "HandleCount", "report_metadata"]


@dataclass(frozen=True, slots=True)
class HandleCount:
    """What became of the handles of one request.

    Args:
        honoured: Genuine ones; their facts are in the prompt unless the context was full.
        inert: Unknown, forged, stale or foreign ones: taken out of the text and left at that.
    """

    honoured: int = 0
    inert: int = 0


@dataclass(slots=True)
class BridgedRequest:
    """What to send for a conversation with handles, and the state of the answer.

    Send ``messages`` (chat) or ``extra_body["prompt"]`` (text completion) with ``extra_body`` laid
    over the application's own by :func:`~inferscale_sdk.bridge.deep_merge`. Around a stream call
    :meth:`start`, :meth:`spoke` and :meth:`count`; then give the response to
    :meth:`ChatBridge.finish`.

    Args:
        plan: The prompt; ``None`` when nobody's memory was asked for.
        conversation: The messages without handles and without memory.
        messages: The ``messages`` to send.
        extra_body: Further fields of the request: tokens, segments and salt.
        handles: What became of the handles.
        exchange: The engine's side; ``None`` when exact tokens are not sent.
        reason: Why memory is given as text in the messages, empty if it is not.
    """

    plan: PreparedPlan | None
    conversation: tuple[dict[str, Any], ...]
    messages: list[dict[str, Any]]
    extra_body: dict[str, Any]
    handles: HandleCount = field(default_factory=HandleCount)
    exchange: Exchange | None = None
    reason: str = ""
    usage: Usage = field(default_factory=Usage)

    def start(self) -> None:
        """The request is about to be written; time to first token counts from here."""
        if self.exchange is not None:
            self.exchange.start()

    def spoke(self) -> None:
        """Something of the answer has come; the first time counts."""
        if self.exchange is not None:
            self.exchange.spoke()

    def count(self, usage: Mapping[str, Any]) -> None:
        """Take the server's ``usage`` object, in a response or on the last chunk of a stream."""
        self.usage = Usage.of({"usage": usage})
        if self.exchange is not None:
            self.exchange.usage = self.usage

    def text_report(self) -> InjectionReport:
        """The report of a request whose memory, if any, went as text in its messages."""
        facts = self.plan.fact_ids if self.plan is not None else ()
        cached = min(self.usage.cached_tokens or 0, self.usage.prompt_tokens)
        return InjectionReport(
            status=InjectionStatus.TEXT if facts else InjectionStatus.NONE,
            reason=self.reason,
            prompt_tokens=self.usage.prompt_tokens,
            memory_tokens=self.plan.memory_tokens if self.plan is not None else 0,
            cached_tokens=cached,
            prefilled_tokens=self.usage.prompt_tokens - cached,
            fact_ids=facts,
        )


def report_metadata(report: InjectionReport, handles: HandleCount) -> dict[str, Any]:
    """A report as plain JSON values, for the metadata of a framework's response.

    It survives checkpoints: no class of ours is in it.
    """
    values = asdict(report)
    del values["missing_keys"]
    return {
        **values,
        "status": report.status.value,
        "fact_ids": list(report.fact_ids),
        "handles_honoured": handles.honoured,
        "handles_inert": handles.inert,
    }
