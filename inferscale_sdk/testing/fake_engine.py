"""An engine without a model that keeps segments and checks them as the connector does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, EngineInfo, Sampling
from inferscale_sdk.errors import ContextOverflow, EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.prompt.base import ChatTokenizer, EncodePlan, PromptPlan
from inferscale_sdk.protocol import EncodeAnswer, InjectAnswer, Reason, StatsAnswer, salt_matches
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer
from inferscale_sdk.types import InjectionReport, InjectionStatus

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

    Segments live in a dict ``key -> token digest``. An injection is verified as the server does
    it: from position 0, contiguous, each segment's stored digest equal to the digest of the
    prompt's tokens at that place, at least one token left to compute, the salt bound to the keys.
    A preamble that is not there is learnt on the way.

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
        self.segments: dict[str, str] = {}
        self.faults = Faults()
        self.closed = False
        self.cancelled = 0
        self.info_calls = 0
        self._answer = answer or (lambda _plan, _text: "ok")
        self._can_inject = can_inject
        self._max_model_len = max_model_len
        self._fingerprint = fingerprint
        self._tokenizer = tokenizer or FakeTokenizer()
        self._log = _Log()
        self._lock = threading.Lock()

    # -- what tests look at ----------------------------------------------------------------

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
            fingerprint=self._fingerprint if self._can_inject else "",
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
            if plan.op.fingerprint != self._fingerprint:
                return EncodeAnswer(failed={c.key: Reason.WRONG_MODEL for c in plan.op.captures})
            for capture in plan.op.captures:
                own = plan.token_ids[capture.start : capture.stop]
                if len(own) != capture.stop - capture.start:
                    raise EngineError(
                        f"capture stops at {capture.stop} but the prompt has "
                        f"{len(plan.token_ids)} tokens"
                    )
                self.segments[capture.key] = token_digest(own)
            return EncodeAnswer(stored=tuple(c.key for c in plan.op.captures))

    async def aencode(self, plan: EncodePlan) -> EncodeAnswer:
        """Async twin of :meth:`encode`."""
        return await asyncio.to_thread(self.encode, plan)

    def generate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Verify the plan's segments, then answer."""
        self._trouble()
        sampling = sampling or Sampling()
        report = self._receive(plan, sampling)
        return self._completion(plan, sampling, report)

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
        report = self._receive(plan, sampling, started)
        completion = self._completion(plan, sampling, report)
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
            answer = self._inject(plan) if plan.segments else None
        ttft = None if started is None else (time.perf_counter() - started) * 1e3
        return _report(plan, answer, ttft)

    def _inject(self, plan: PromptPlan) -> InjectAnswer:
        keys = [s.key for s in plan.segments]
        if plan.fingerprint != self._fingerprint:
            answer = InjectAnswer(reason=Reason.WRONG_MODEL)
        elif not salt_matches(plan.cache_salt, keys):
            answer = InjectAnswer(reason=Reason.WRONG_SALT if plan.cache_salt else Reason.NO_SALT)
        else:
            answer = self._walk(plan)
        self._log.injections.append(answer)
        return answer

    def _walk(self, plan: PromptPlan) -> InjectAnswer:
        at, loaded, reason = 0, [], Reason.OK
        learned: tuple[str, ...] = ()
        for segment in plan.segments:
            own = plan.token_ids[at : at + segment.n_tokens]
            stored = self.segments.get(segment.key)
            if stored is None:
                reason = Reason.MISSING
                if segment.kind == "preamble":
                    self.segments[segment.key] = token_digest(own)
                    learned = (segment.key,)
                break
            if stored != token_digest(own):
                reason = Reason.TOKEN_MISMATCH
                break
            loaded.append(segment.key)
            at += segment.n_tokens
        absent = (s.key for s in plan.segments if s.key not in self.segments)
        claimed = min(at, len(plan.token_ids) - 1)
        return InjectAnswer(
            reason=reason,
            claimed_tokens=claimed,
            loaded_tokens=claimed,
            loaded_keys=tuple(loaded),
            missing_keys=tuple(absent) + learned,
            learned_keys=learned,
        )

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


def _report(plan: PromptPlan, answer: InjectAnswer | None, ttft: float | None) -> InjectionReport:
    injected = (answer.loaded_tokens or 0) if answer else 0
    if answer and len(answer.loaded_keys) == len(plan.segments):
        status = InjectionStatus.INJECTED
    elif injected:
        status = InjectionStatus.PARTIAL
    else:
        status = InjectionStatus.TEXT if plan.fact_ids else InjectionStatus.NONE
    return InjectionReport(
        status=status,
        reason=answer.reason.value if answer else "",
        prompt_tokens=len(plan.token_ids),
        memory_tokens=plan.memory_tokens,
        injected_tokens=injected,
        prefilled_tokens=len(plan.token_ids) - injected,
        fact_ids=plan.fact_ids,
        missing_keys=answer.missing_keys if answer else (),
        ttft_ms=ttft,
    )
