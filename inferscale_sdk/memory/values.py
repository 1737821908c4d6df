"""What the facade returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferscale_sdk.engines.base import Completion
from inferscale_sdk.ingest.progress import EncodeProgress
from inferscale_sdk.ingest.worker import WorkerState, WorkerStatus
from inferscale_sdk.memory.turns import ChatMessage
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.types import InjectionReport, Namespace, ScoredFact

__all__ = ["Answer", "MemoryStats", "PlanRequest", "PreparedPlan"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and where it comes from.

    Args:
        text: The answer.
        report: What became of the memory.
        facts: The facts in the prompt with their scores, best first.
        completion: The engine's own result.
    """

    text: str
    report: InjectionReport
    facts: tuple[ScoredFact, ...]
    completion: Completion


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """A look at a memory.

    Args:
        last_seq: Changes to the store since it was made.
        pending: Facts without KV for the engine at hand; ``None`` without an engine that injects.
        forgets_queued: Keys that the server still has to drop.
        handles_resolved: Fact handles honoured.
        handles_inert: Fact handles left alone: unknown, forged, stale or foreign.
        degraded: Requests that went on with less memory than they should have had.
        worker: What the encoding thread is doing.
        encoding: What has been encoded by this object.
    """

    last_seq: int
    pending: int | None
    forgets_queued: int
    handles_resolved: int = 0
    handles_inert: int = 0
    degraded: int = 0
    worker: WorkerStatus = field(default_factory=lambda: WorkerStatus(WorkerState.STOPPED))
    encoding: EncodeProgress = field(default_factory=EncodeProgress)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a prompt was planned from, to plan it again when a fact changes.

    Args:
        messages: The conversation without handles.
        scope: Whose request it is.
        reserve_tokens: Kept free for the answer.
        inject: Whether stored KV may be used.
        tools: Tool schemas for the chat template.
        template_kwargs: Further variables of the chat template.
    """

    messages: tuple[ChatMessage, ...]
    scope: Namespace
    reserve_tokens: int
    inject: bool = True
    tools: tuple[Mapping[str, Any], ...] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPlan(PromptPlan):
    """A plan that knows how to be made again.

    Args:
        request: What it was made from.
        facts: The facts in the prompt with their scores, best first.
        note: Why the memory is less than it should be; empty when it is not.
    """

    request: PlanRequest | None = None
    facts: tuple[ScoredFact, ...] = ()
    note: str = ""

    @classmethod
    def of(
        cls, plan: PromptPlan, request: PlanRequest, facts: tuple[ScoredFact, ...], note: str
    ) -> PreparedPlan:
        """``plan`` with what it was made from."""
        shared = {f.name: getattr(plan, f.name) for f in fields(PromptPlan)}
        return cls(**shared, request=request, facts=facts, note=note)
