"""From a conversation to a prompt with memory.

Memory never makes a chat fail: with ``on_error="text"`` whatever goes wrong with recall, stored
KV or injection costs speed or context, is logged, and stands in the report.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from inferscale_sdk.engines.base import Engine, EngineInfo
from inferscale_sdk.engines.wire import without_segments
from inferscale_sdk.errors import (
    ConfigurationError,
    ContextOverflow,
    EngineTimeout,
    EngineUnavailable,
    NamespaceError,
    blame,
)
from inferscale_sdk.facts.base import EncodingRecord, FactStore
from inferscale_sdk.memory.tracing import span
from inferscale_sdk.memory.values import PlanRequest, PreparedPlan
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.prompt.live import n_live
from inferscale_sdk.prompt.order import FactOrder
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.types import ScoredFact

__all__ = ["OnError", "Preparer"]

log = logging.getLogger(__name__)

OnError: TypeAlias = Literal["text", "raise"]
FindFacts: TypeAlias = Callable[[], Sequence[ScoredFact]]

_CHAT_FAILURES = (EngineUnavailable, EngineTimeout, ContextOverflow)
"""Failures of the chat itself, which leaving the memory out would not mend."""


class Preparer:
    """Recalls and plans, and plans again when facts change. Safe for several threads.

    Args:
        store: The truth about facts and their KV.
        engine: Who answers.
        planner: Makes prompts; called when first needed, because it needs the engine's tokenizer.
        window_name: Name of the window strategy, part of the encoding profile.
        on_error: ``text`` goes on with less memory, ``raise`` raises.
        live_facts: So many of the best facts stay text behind the injected ones; ``None`` as
            :func:`~inferscale_sdk.prompt.live.n_live` has it.
        order: In which facts stand in the prompt.
        prefetch: Whether to tell the engine which segments come as soon as recall has decided.
    """

    def __init__(
        self,
        store: FactStore,
        engine: Engine,
        planner: Callable[[], Planner],
        window_name: str,
        *,
        on_error: OnError,
        live_facts: int | None = None,
        order: FactOrder = "best-last",
        prefetch: bool = False,
    ) -> None:
        self._live_facts = live_facts
        self._order = order
        self._prefetch = prefetch
        self._store = store
        self._engine = engine
        self._planner = planner
        self._window_name = window_name
        self._on_error = on_error
        self._lock = threading.Lock()
        self.degraded = 0

    # -- planning --------------------------------------------------------------------------

    def prepare(self, request: PlanRequest, find_facts: FindFacts) -> PreparedPlan:
        """Recall and plan.

        Raises:
            ConfigurationError: The call or the set-up is wrong; whatever ``on_error`` says.
            ContextOverflow: The conversation does not fit even without memory.
            EngineUnavailable: Nobody has ever answered, so that the model is unknown.
            InferScaleError: With ``on_error="raise"``, whatever recall or planning raised.
        """
        # Read before recall: a change in between is then noticed before sending.
        note, seq = "", -1
        scored: tuple[ScoredFact, ...] = ()
        try:
            seq = self._store.last_seq()
            scored = tuple(find_facts())
        except (ConfigurationError, NamespaceError):
            # A mistake in the call or the set-up, which must not hide behind a worse answer.
            raise
        except Exception as error:
            note = self._degrade("recall failed", error)
        return self._plan(request, scored, seq, note)

    def refresh(self, plan: PromptPlan) -> PromptPlan:
        """``plan``, or a new one if a fact in it changed or went since it was made.

        Call it right before sending, so that a deleted fact is not served even to a request
        that was planned before. Plans that were not made by :meth:`prepare` are returned as
        they are.
        """
        if not isinstance(plan, PreparedPlan) or plan.request is None or not plan.fact_ids:
            return plan
        try:
            seq = self._store.last_seq()
            if seq == plan.seq:
                return plan
            scope = plan.request.scope
            now = {f.id: f for f in self._store.get_many(list(plan.fact_ids), scope)}
            current = tuple(
                replace(scored, fact=now[scored.fact.id])
                for scored in plan.facts
                if scored.fact.id in now
            )
            if current == plan.facts and self._keys_hold(plan):
                return replace(plan, seq=seq)
        except Exception as error:
            note = self._degrade("facts could not be checked again, memory left out", error)
            return self._plan(plan.request, (), -1, note)
        return self._plan(plan.request, current, seq, plan.note)

    def _keys_hold(self, plan: PreparedPlan) -> bool:
        """Whether every segment of the plan is still what the ledger says.

        A fact whose *window* held a deleted fact keeps its text but must lose its KV.
        """
        records = self._records(plan.fact_ids, self._engine.info())
        return all(
            segment.fact_id is None
            or (segment.fact_id in records and records[segment.fact_id].key == segment.key)
            for segment in plan.segments
        )

    def _records(self, fact_ids: Sequence[str], info: EngineInfo) -> dict[str, EncodingRecord]:
        if not info.can_inject or not fact_ids:
            return {}
        profile = self._planner().profile(info.fingerprint, self._window_name)
        return self._store.encodings(list(fact_ids), profile)

    def _plan(
        self, request: PlanRequest, scored: tuple[ScoredFact, ...], seq: int, note: str
    ) -> PreparedPlan:
        with span("plan", facts=len(scored), inject=request.inject) as tracing:
            plan = self._planned(request, scored, seq, note)
            tracing.set(
                prompt_tokens=len(plan.token_ids),
                memory_tokens=plan.memory_tokens,
                segments=len(plan.segments),
                live_facts=len(plan.live_fact_ids),
                dropped_facts=len(plan.dropped_fact_ids),
            )
            return plan

    def _planned(
        self, request: PlanRequest, scored: tuple[ScoredFact, ...], seq: int, note: str
    ) -> PreparedPlan:
        info = self._engine.info()
        records: dict[str, EncodingRecord] = {}
        facts = [s.fact for s in scored]
        stored = [fact.id for fact in facts]
        try:
            # Best first: those that stay text are left out.
            live = n_live(facts, self._live_facts, self._planner().count_tokens, self._order)
            stored = [fact.id for fact in facts[live:]]
            records = self._records(stored, info)
            if self._prefetch and request.inject and records:
                # While the prompt is still being made.
                self._engine.prefetch([records[i].key for i in stored if i in records])
        except Exception as error:
            note = _join(note, self._degrade("stored KV could not be looked up", error))
        try:
            plan = self._call_planner(request, scored, records, info, seq)
        except ContextOverflow:
            raise
        except Exception as error:
            if not scored:
                raise
            note = _join(note, self._degrade("planning with memory failed", error))
            scored = ()
            plan = self._call_planner(request, scored, {}, info, seq)
        if request.inject and plan.fact_ids and not plan.segments:
            all_live = not set(plan.fact_ids).intersection(stored)
            note = _join(note, _why_no_segments(info, records, all_live=all_live))
        if plan.dropped_fact_ids:
            n = len(plan.dropped_fact_ids)
            note = _join(note, f"{n} facts left out, the context is full")
        kept = tuple(s for s in scored if s.fact.id in set(plan.fact_ids))
        return PreparedPlan.of(plan, request, kept, note)

    def _call_planner(
        self,
        request: PlanRequest,
        scored: tuple[ScoredFact, ...],
        records: dict[str, EncodingRecord],
        info: EngineInfo,
        seq: int,
    ) -> PromptPlan:
        return self._planner().plan(
            request.messages,
            facts=[s.fact for s in reversed(scored)],
            encodings=records,
            scope=request.scope,
            fingerprint=info.fingerprint,
            max_model_len=info.max_model_len,
            reserve_tokens=request.reserve_tokens,
            inject=request.inject and info.can_inject,
            tools=request.tools,
            template_kwargs=request.template_kwargs,
            overflow="raise" if self._on_error == "raise" else "drop_facts",
            order=self._order,
            seq=seq,
        )

    def as_text(self, plan: PromptPlan, error: Exception) -> PromptPlan:
        """The same tokens without injection, because injecting raised ``error``.

        The failure took its time: facts that went meanwhile are left out, as by :meth:`refresh`.

        Raises:
            EngineError: ``error`` itself, if text would not mend it or is not wanted.
        """
        if isinstance(error, _CHAT_FAILURES) or not plan.segments:
            raise error
        note = self._degrade("injection failed, memory given as text", error)
        text = without_segments(plan)
        if not isinstance(text, PreparedPlan):
            return text
        # Whatever is planned again must not inject either.
        request = None if text.request is None else replace(text.request, inject=False)
        return self.refresh(replace(text, request=request, note=_join(text.note, note)))

    def _degrade(self, what: str, error: Exception) -> str:
        """Log and count a failure, or raise it; returns what the report says about it."""
        if self._on_error == "raise":
            raise error
        with self._lock:
            self.degraded += 1
        log.warning("%s: %s", what, blame(error))
        return f"{what} ({type(error).__name__})"


def _why_no_segments(
    info: EngineInfo, records: Mapping[str, EncodingRecord], *, all_live: bool
) -> str:
    """Why none of a plan's facts has stored KV that could be injected."""
    if not info.can_inject:
        return info.reason
    if all_live:
        return "left as text because of live_facts"
    return "" if records else "not encoded yet"


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
