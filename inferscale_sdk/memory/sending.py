"""From a prepared prompt to an answer, by call or by stream, waiting or async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, Sampling
from inferscale_sdk.errors import EngineError, ProtocolError, blame
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.memory.preparing import Preparer
from inferscale_sdk.memory.tracing import Span, begin, span
from inferscale_sdk.memory.values import PreparedPlan
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.types import InjectionReport

__all__ = ["Sender"]

log = logging.getLogger(__name__)

_PREAMBLES = 4096
_MENDABLE = (EngineError, ProtocolError)


class Sender:
    """Sends plans to the engine, checks them right before, and learns from the reports.

    Args:
        store: Its ledger forgets what the server has lost.
        engine: Who answers.
        preparer: Plans again where needed.
        wake_encoder: Called when segments have to be encoded again.
    """

    def __init__(
        self,
        store: FactStore,
        engine: Engine,
        preparer: Preparer,
        wake_encoder: Callable[[], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._preparer = preparer
        self._wake_encoder = wake_encoder
        self._preambles: set[str] = set()

    def generate(self, plan: PromptPlan, sampling: Sampling) -> tuple[PromptPlan, Completion]:
        """The plan that was sent in the end, and its answer."""
        with span("request", **_asked(plan, sampling, stream=False)) as tracing:
            plan = self._preparer.refresh(plan)
            try:
                completion = self._engine.generate(plan, sampling)
            except _MENDABLE as error:
                plan = self._preparer.as_text(plan, error)
                completion = self._engine.generate(plan, sampling)
            completion = self._finish(plan, completion)
            tracing.set(**_became(completion))
            return plan, completion

    async def agenerate(
        self, plan: PromptPlan, sampling: Sampling
    ) -> tuple[PromptPlan, Completion]:
        """Async twin of :meth:`generate`."""
        with span("request", **_asked(plan, sampling, stream=False)) as tracing:
            plan = await asyncio.to_thread(self._preparer.refresh, plan)
            try:
                completion = await self._engine.agenerate(plan, sampling)
            except _MENDABLE as error:
                plan = await asyncio.to_thread(self._preparer.as_text, plan, error)
                completion = await self._engine.agenerate(plan, sampling)
            completion = await asyncio.to_thread(self._finish, plan, completion)
            tracing.set(**_became(completion))
            return plan, completion

    def stream(self, plan: PromptPlan, sampling: Sampling) -> Iterator[CompletionChunk]:
        """Text as it comes; falls back to text only while nothing has been yielded yet."""
        tracing = begin("request", **_asked(plan, sampling, stream=True))
        chunks: Iterator[CompletionChunk] | None = None
        try:
            plan = self._preparer.refresh(plan)
            try:
                chunks = self._engine.stream(plan, sampling)
                chunk = next(chunks, None)
            except _MENDABLE as error:
                plan = self._preparer.as_text(plan, error)
                chunks = self._engine.stream(plan, sampling)
                chunk = next(chunks, None)
            while chunk is not None:
                chunk = self._finish_chunk(plan, chunk)
                _ended(tracing, chunk)
                yield chunk
                chunk = next(chunks, None)
        except Exception as error:
            tracing.failed(error)
            raise
        finally:
            # Whoever stops listening also stops the engine's work.
            tracing.end()
            _close(chunks)

    async def astream(
        self, plan: PromptPlan, sampling: Sampling
    ) -> AsyncGenerator[CompletionChunk, None]:
        """Async twin of :meth:`stream`."""
        tracing = begin("request", **_asked(plan, sampling, stream=True))
        chunks: AsyncIterator[CompletionChunk] | None = None
        try:
            plan = await asyncio.to_thread(self._preparer.refresh, plan)
            try:
                chunks = self._engine.astream(plan, sampling)
                chunk = await anext(chunks, None)
            except _MENDABLE as error:
                plan = await asyncio.to_thread(self._preparer.as_text, plan, error)
                chunks = self._engine.astream(plan, sampling)
                chunk = await anext(chunks, None)
            while chunk is not None:
                if chunk.completion is not None:
                    chunk = await asyncio.to_thread(self._finish_chunk, plan, chunk)
                    _ended(tracing, chunk)
                yield chunk
                chunk = await anext(chunks, None)
        except Exception as error:
            tracing.failed(error)
            raise
        finally:
            tracing.end()
            await _aclose(chunks)

    def observe(self, report: InjectionReport) -> None:
        """Learn from a report: what the server has lost is encoded again.

        Never raises; a ledger that cannot be written now is corrected by a later report.
        """
        if not report.missing_keys:
            return
        try:
            lost = self._store.drop_encodings(report.missing_keys)
        except Exception as error:
            log.warning("lost segments could not be noted: %s", type(error).__name__)
            return
        if lost:
            log.info("the server has lost %d segments; they are encoded again", lost)
            self._wake_encoder()

    def settle(self, plan: PromptPlan, report: InjectionReport) -> InjectionReport:
        """Learn from a report; returns it with what went wrong before sending."""
        self.observe(report)
        self._note_preamble(plan)
        note = plan.note if isinstance(plan, PreparedPlan) else ""
        if not note:
            return report
        return replace(report, reason="; ".join(filter(None, (note, report.reason))))

    def _note_preamble(self, plan: PromptPlan) -> None:
        """Write down a preamble that the server may have learnt: it is ours, and no fact's."""
        key = plan.segments[0].key if plan.segments and not plan.segments[0].fact_id else None
        if key is None or key in self._preambles:
            return
        if len(self._preambles) >= _PREAMBLES:
            self._preambles.clear()
        self._preambles.add(key)
        try:
            self._store.note_keys([key], lasting=True)
        except Exception as error:
            log.warning("a preamble's key could not be noted: %s", blame(error))

    def _finish(self, plan: PromptPlan, completion: Completion) -> Completion:
        return replace(completion, report=self.settle(plan, completion.report))

    def _finish_chunk(self, plan: PromptPlan, chunk: CompletionChunk) -> CompletionChunk:
        if chunk.completion is None:
            return chunk
        return replace(chunk, completion=self._finish(plan, chunk.completion))


def _asked(plan: PromptPlan, sampling: Sampling, *, stream: bool) -> dict[str, str | int | bool]:
    """What a span says about a request; never its text."""
    return {
        "stream": stream,
        "max_tokens": sampling.max_tokens,
        "facts": len(plan.fact_ids),
        "segments": len(plan.segments),
    }


def _became(completion: Completion) -> dict[str, str | int | float]:
    """What a span says about the outcome; never its text."""
    report = completion.report
    ttft = {} if report.ttft_ms is None else {"ttft_ms": report.ttft_ms}
    return {
        "status": report.status.value,
        # The first word is a reason of the protocol; what follows is prose for people.
        "reason": report.reason.partition(":")[0],
        "finish_reason": completion.finish_reason,
        "prompt_tokens": report.prompt_tokens,
        "memory_tokens": report.memory_tokens,
        "injected_tokens": report.injected_tokens,
        "cached_tokens": report.cached_tokens,
        "prefilled_tokens": report.prefilled_tokens,
        "completion_tokens": completion.completion_tokens,
        **ttft,
    }


def _ended(tracing: Span, chunk: CompletionChunk) -> None:
    if chunk.completion is not None:
        tracing.set(**_became(chunk.completion))


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


async def _aclose(iterator: Any) -> None:
    aclose = getattr(iterator, "aclose", None)
    if aclose is not None:
        await aclose()
