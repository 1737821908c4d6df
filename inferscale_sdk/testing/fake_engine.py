"""An engine without a model that keeps segments and checks them as the connector does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, EngineInfo, Sampling
from inferscale_sdk.errors import ContextOverflow, EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.prompt.base import ChatTokenizer, EncodePlan, PromptPlan
from inferscale_sdk.protocol import EncodeAnswer, InjectAnswer, Reason, StatsAnswer
from inferscale_sdk.testing.fake_segments import FakeSegments, report
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer
from inferscale_sdk.types import InjectionReport

__all__ = ["FakeEngine", "Faults"]

Answerer = Callable[[PromptPlan, str], str]


@dataclass(slots=True)
class Faults:
    """What goes wrong, set by a test at any time.

    Args:
        unavailable: Every call raises ``EngineUnavailable``.
        timeout: Every call but ``info`` raises ``EngineTimeout``.
        encode_error: ``encode`` raises this.
        inject_error: ``generate`` and ``stream`` raise this for plans with segments.
        refuse_encode: Captures fail with this reason.
        delay_s: Seconds each call takes.
        break_stream_after: Chunks after which a stream raises ``EngineError``.
    """

    unavailable: bool = False
    timeout: bool = False
    encode_error: Exception | None = None
    inject_error: Exception | None = None
    refuse_encode: Reason | None = None
    delay_s: float = 0.0
    break_stream_after: int | None = None


@dataclass(slots=True)
class _Log:
    encodes: list[EncodePlan] = field(default_factory=list)
    prompts: list[PromptPlan] = field(default_factory=list)
    injections: list[InjectAnswer] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)


class FakeEngine(Engine):
    """An :class:`Engine` for tests.

    Segments and how they are verified: see
    :class:`~inferscale_sdk.testing.fake_segments.FakeSegments`.

    Args:
        answer: Makes the answer from the plan and its prompt text; by default ``"ok"``.
        can_inject: Whether it claims to inject.
        max_model_len: Context length in tokens.
        fingerprint: Of the model.
        tokenizer: By default a :class:`FakeTokenizer`.
    """

    def __init__(
        self,
        answer: Answerer | None = None,
        *,
        can_inject: bool = True,
        max_model_len: int = 65_536,
        fingerprint: str = "fake-model",
        tokenizer: ChatTokenizer | None = None,
    ) -> None:
        self.faults = Faults()
        self.closed = False
        self.cancelled = 0
        self.info_calls = 0
        self._answer = answer or (lambda _plan, _text: "ok")
        self._can_inject = can_inject
        self._max_model_len = max_model_len
        self._kv = FakeSegments(fingerprint)
        self._tokenizer = tokenizer or FakeTokenizer()
        self._log = _Log()
        self._lock = threading.Lock()

    # -- what tests look at ----------------------------------------------------------------

    @property
    def segments(self) -> dict[str, str]:
        """Token digest of every segment it holds, by key."""
        return self._kv.digests

    def become(self, fingerprint: str) -> None:
        """Be another model from now on."""
        self._kv.fingerprint = fingerprint

    @property
    def encodes(self) -> list[EncodePlan]:
        """Every encode plan that arrived, oldest first."""
        return self._log.encodes

    @property
    def prompts(self) -> list[PromptPlan]:
        """Every prompt plan that arrived, oldest first."""
        return self._log.prompts

    @property
    def injections(self) -> list[InjectAnswer]:
        """What became of each prompt that had segments."""
        return self._log.injections

    @property
    def forgotten(self) -> list[str]:
        """Every key it was asked to forget, oldest first."""
        return self._log.forgotten

    def prompt_text(self, plan: PromptPlan | EncodePlan) -> str:
        """The text the model would read, special tokens left out."""
        return self._tokenizer.decode(plan.token_ids)

    def lose(self, keys: Iterable[str] | None = None) -> None:
        """Forget segments behind the client's back; all of them by default."""
        with self._lock:
            for key in list(self.segments) if keys is None else keys:
                self.segments.pop(key, None)

    # -- the contract ----------------------------------------------------------------------

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer given, or a :class:`FakeTokenizer`."""
        return self._tokenizer

    def info(self, *, refresh: bool = False) -> EngineInfo:
        """Identity; fails only while ``faults.unavailable``."""
        self.info_calls += 1
        if self.faults.unavailable:
            raise EngineUnavailable("the fake engine is switched off; set faults.unavailable=False")
        return EngineInfo(
            model="fake",
            fingerprint=self._kv.fingerprint if self._can_inject else "",
            max_model_len=self._max_model_len,
            can_inject=self._can_inject,
            reason="" if self._can_inject else "the fake engine was built with can_inject=False",
            block_size=16,
        )

    def encode(self, plan: EncodePlan) -> EncodeAnswer:
        """Keep the digests of the plan's spans."""
        self._trouble()
        with self._lock:
            self._log.encodes.append(plan)
            if self.faults.encode_error is not None:
                raise self.faults.encode_error
            if self.faults.refuse_encode is not None:
                reason = self.faults.refuse_encode
                return EncodeAnswer(failed={c.key: reason for c in plan.op.captures})
            if len(plan.token_ids) + 2 > self._max_model_len:
                raise ContextOverflow(len(plan.token_ids) + 2, self._max_model_len, "shorten it")
            return self._kv.capture(plan)

    async def aencode(self, plan: EncodePlan) -> EncodeAnswer:
        """Async twin of :meth:`encode`."""
        return await asyncio.to_thread(self.encode, plan)

    def generate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Verify the plan's segments, then answer."""
        self._trouble()
        sampling = sampling or Sampling()
        return self._completion(plan, sampling, self._receive(plan, sampling))

    async def agenerate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Async twin of :meth:`generate`; a cancelled call counts in ``cancelled``."""
        try:
            await asyncio.sleep(self.faults.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self._trouble(delay=False)
        sampling = sampling or Sampling()
        return self._completion(plan, sampling, self._receive(plan, sampling))

    def stream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> Iterator[CompletionChunk]:
        """The answer word by word."""
        self._trouble()
        sampling = sampling or Sampling()
        started = time.perf_counter()
        completion = self._completion(plan, sampling, self._receive(plan, sampling, started))
        try:
            yield from self._chunks(completion)
        except GeneratorExit:
            self.cancelled += 1
            raise

    async def astream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> AsyncIterator[CompletionChunk]:
        """Async twin of :meth:`stream`."""
        self._trouble(delay=False)
        sampling = sampling or Sampling()
        started = time.perf_counter()
        completion = self._completion(plan, sampling, self._receive(plan, sampling, started))
        try:
            for chunk in self._chunks(completion):
                await asyncio.sleep(self.faults.delay_s)
                yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise

    def forget(self, keys: Sequence[str]) -> int:
        """Drop segments."""
        self._trouble()
        with self._lock:
            self._log.forgotten.extend(keys)
            return sum(self.segments.pop(key, None) is not None for key in keys)

    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Segments it holds lie in ``host``."""
        self._trouble()
        with self._lock:
            return {key: ("host",) for key in keys if key in self.segments}

    def stats(self, report_ids: Sequence[str] = ()) -> StatsAnswer:
        """How many segments it holds."""
        self._trouble()
        return StatsAnswer(counters={"segments": len(self.segments)})

    def close(self) -> None:
        """Mark it closed."""
        self.closed = True

    async def aclose(self) -> None:
        """Async twin of :meth:`close`."""
        self.close()

    # -- inside ----------------------------------------------------------------------------

    def _trouble(self, *, delay: bool = True) -> None:
        if delay and self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        if self.faults.unavailable:
            raise EngineUnavailable("the fake engine is switched off; set faults.unavailable=False")
        if self.faults.timeout:
            raise EngineTimeout("the fake engine was told to time out; set faults.timeout=False")

    def _receive(
        self, plan: PromptPlan, sampling: Sampling, started: float | None = None
    ) -> InjectionReport:
        needed = len(plan.token_ids) + sampling.max_tokens
        if needed > self._max_model_len:
            raise ContextOverflow(needed, self._max_model_len, "shorten the conversation")
        with self._lock:
            self._log.prompts.append(plan)
            if plan.segments and self.faults.inject_error is not None:
                raise self.faults.inject_error
            answer = self._kv.inject(plan) if plan.segments else None
            if answer is not None:
                self._log.injections.append(answer)
        ttft = None if started is None else (time.perf_counter() - started) * 1e3
        return report(plan, answer, ttft)

    def _completion(
        self, plan: PromptPlan, sampling: Sampling, report: InjectionReport
    ) -> Completion:
        words = self._answer(plan, self.prompt_text(plan)).split(" ")
        kept = words[: sampling.max_tokens]
        return Completion(
            text=" ".join(kept),
            finish_reason="length" if len(kept) < len(words) else "stop",
            report=report,
            completion_tokens=len(kept),
        )

    def _chunks(self, completion: Completion) -> Iterator[CompletionChunk]:
        words = completion.text.split(" ")
        for i, word in enumerate(words):
            if self.faults.break_stream_after == i:
                raise EngineError(f"the fake engine was told to break after {i} chunks")
            last = i == len(words) - 1
            yield CompletionChunk(
                word if last else word + " ", completion=completion if last else None
            )
