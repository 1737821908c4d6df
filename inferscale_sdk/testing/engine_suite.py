"""What every engine must do. Subclass :class:`EngineSuite` and give it an ``engine`` fixture."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, Sampling
from inferscale_sdk.errors import ContextOverflow
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.prompt.base import EncodePlan, PromptPlan, Reading
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.protocol import Reason
from inferscale_sdk.types import Fact, InjectionReport, InjectionStatus, Message, Namespace

__all__ = ["EngineSuite"]

_SHORT = Sampling(max_tokens=12)
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ids = itertools.count()


@dataclass(frozen=True)
class _Life:
    """One user with facts that nobody else has, so that tests on one server do not meet."""

    planner: Planner
    scope: Namespace
    facts: tuple[Fact, ...]
    engine: Engine

    @classmethod
    def of(cls, engine: Engine, texts: tuple[str, ...]) -> _Life:
        scope = Namespace(user_id=f"suite-{secrets.token_hex(8)}")
        facts = tuple(
            Fact(
                id="f" + "".join("abcdefghij"[int(d)] for d in str(next(_ids))),
                version=1,
                text=text,
                namespace=scope,
                conversation_id="c",
                position=i,
                created_at=_NOW,
                updated_at=_NOW,
            )
            for i, text in enumerate(texts)
        )
        planner = Planner(engine.tokenizer, store_secret=secrets.token_bytes(32))
        return cls(planner, scope, facts, engine)

    def encode_plan(
        self, readings: Mapping[str, Reading] | None = None, *, is_first: bool = False
    ) -> EncodePlan:
        return self.planner.plan_encode(
            (),
            self.facts,
            fingerprint=self.engine.info().fingerprint,
            partition=self.scope.partition,
            capture_preamble=True,
            readings=readings,
            nonce="suite" if is_first else "",
        )

    def second_reading(self, first: EncodePlan) -> EncodePlan:
        keys = [span.key for span in first.op.captures[1:]]
        return self.encode_plan(
            {
                fact.id: Reading(key, name, ())
                for fact, key, name in zip(self.facts, keys, first.reading_names, strict=True)
            }
        )

    def records(self, plan: EncodePlan) -> dict[str, EncodingRecord]:
        captures = plan.op.captures[1:]
        return {
            fact_id: EncodingRecord(
                fact_id, 1, "suite", c.key, c.stop - c.start, context, created_at=_NOW
            )
            for fact_id, context, c in zip(
                plan.fact_ids, plan.context_fact_ids, captures, strict=True
            )
        }

    def prompt(
        self, records: dict[str, EncodingRecord] | None = None, question: str = "Where do I live?"
    ) -> PromptPlan:
        info = self.engine.info()
        return self.planner.plan(
            [Message("user", question)],
            facts=self.facts,
            encodings=records or {},
            scope=self.scope,
            fingerprint=info.fingerprint,
            max_model_len=info.max_model_len,
            reserve_tokens=_SHORT.max_tokens,
        )

    def stored(self) -> PromptPlan:
        """A prompt whose facts are all encoded."""
        plan = self.encode_plan()
        answer = self.engine.encode(plan)
        assert answer.failed == {}
        assert set(answer.stored) == {capture.key for capture in plan.op.captures}
        return self.prompt(self.records(plan))


_TEXTS = ("I live in Oslo.", "My dog is called Rufus.", "I am a nurse.")


def _life(engine: Engine) -> _Life:
    return _Life.of(engine, _TEXTS)


def _planned(plan: PromptPlan) -> int:
    return sum(segment.n_tokens for segment in plan.segments)


def _check_sum(report: InjectionReport, plan: PromptPlan) -> None:
    assert report.prompt_tokens == len(plan.token_ids)
    parts = (report.injected_tokens, report.cached_tokens, report.prefilled_tokens)
    assert min(parts) >= 0
    assert sum(parts) == report.prompt_tokens
    assert report.fact_ids == plan.fact_ids
    assert report.memory_tokens == plan.memory_tokens


def _joined(chunks: list[CompletionChunk]) -> Completion:
    assert all(chunk.completion is None for chunk in chunks[:-1])
    completion = chunks[-1].completion
    assert completion is not None
    assert "".join(chunk.text for chunk in chunks) == completion.text
    return completion


class EngineSuite:
    """Conformance tests of :class:`~inferscale_sdk.engines.base.Engine`.

    The fixture ``engine`` gives an engine that can inject; it may be shared by all tests.
    """

    def test_info_is_stable(self, engine: Engine) -> None:
        """It names itself, and is asked once."""
        info = engine.info()
        assert info.can_inject, info.reason
        assert info.fingerprint
        assert info.model
        assert info.max_model_len > 0
        assert engine.info() == info
        assert engine.info(refresh=True).fingerprint == info.fingerprint

    async def test_four_ways_agree(self, engine: Engine) -> None:
        """Whole, streamed, sync and async: one answer."""
        plan = _life(engine).prompt()
        whole = engine.generate(plan, _SHORT)
        streamed = _joined(list(engine.stream(plan, _SHORT)))
        awaited = await engine.agenerate(plan, _SHORT)
        async_streamed = _joined([chunk async for chunk in engine.astream(plan, _SHORT)])
        for other in (streamed, awaited, async_streamed):
            assert other.text == whole.text
            assert other.finish_reason == whole.finish_reason
            assert other.completion_tokens == whole.completion_tokens
            _check_sum(other.report, plan)
        assert whole.report.ttft_ms is None
        assert streamed.report.ttft_ms is not None
        assert streamed.report.ttft_ms > 0

    def test_text_injects_nothing(self, engine: Engine) -> None:
        """Facts without KV are text; no facts are no memory."""
        life = _life(engine)
        report = engine.generate(life.prompt(), _SHORT).report
        assert report.status is InjectionStatus.TEXT
        assert report.injected_tokens == 0
        _check_sum(report, life.prompt())
        bare = replace(life, facts=()).prompt()
        assert engine.generate(bare, _SHORT).report.status is InjectionStatus.NONE

    def test_encode_then_inject(self, engine: Engine) -> None:
        """What was encoded is not computed again."""
        plan = _life(engine).stored()
        report = engine.generate(plan, _SHORT).report
        assert report.status is InjectionStatus.INJECTED
        assert report.reason == ""
        assert report.injected_tokens == _planned(plan)
        _check_sum(report, plan)
        streamed = _joined(list(engine.stream(plan, _SHORT))).report
        assert streamed.status is InjectionStatus.INJECTED
        _check_sum(streamed, plan)

    def test_encode_is_repeatable(self, engine: Engine) -> None:
        """Encoding again changes nothing."""
        life = _life(engine)
        plan = life.encode_plan()
        assert set(engine.encode(plan).stored) == set(engine.encode(plan).stored)
        report = engine.generate(life.prompt(life.records(plan)), _SHORT).report
        assert report.status is InjectionStatus.INJECTED

    def test_a_second_reading_is_averaged_with_the_first(self, engine: Engine) -> None:
        """Read twice in the same window, facts are what they are when read once."""
        life = _life(engine)
        first = life.encode_plan(is_first=True)
        assert engine.encode(first).failed == {}
        second = life.second_reading(first)
        assert engine.encode(second).failed == {}
        keys = [span.key for plan in (first, second) for span in plan.op.captures[1:]]
        assert len(set(keys)) == 2 * len(life.facts)
        assert engine.locate(keys).keys() == set(keys)
        plan = life.prompt(life.records(second))
        completion = engine.generate(plan, _SHORT)
        assert completion.report.status is InjectionStatus.INJECTED
        once = engine.generate(life.prompt(life.records(first)), _SHORT)
        assert completion.text == once.text

    def test_without_a_first_reading_there_is_no_second(self, engine: Engine) -> None:
        """Nothing is kept that is not what was asked for."""
        life = _life(engine)
        second = life.second_reading(life.encode_plan(is_first=True))
        answer = engine.encode(second)
        keys = [span.key for span in second.op.captures[1:]]
        assert dict(answer.failed) == dict.fromkeys(keys, Reason.MISSING)
        assert engine.locate(keys) == {}

    async def test_encode_async(self, engine: Engine) -> None:
        """The async twin encodes as well."""
        life = _life(engine)
        plan = life.encode_plan()
        answer = await engine.aencode(plan)
        assert answer.failed == {}
        report = (await engine.agenerate(life.prompt(life.records(plan)), _SHORT)).report
        assert report.status is InjectionStatus.INJECTED

    @pytest.mark.parametrize("streamed", [False, True])
    def test_missing_segments_become_text(self, engine: Engine, streamed: bool) -> None:
        """Facts that were never encoded are computed, and the report says so."""
        life = _life(engine)
        plan = life.prompt(life.records(life.encode_plan()))
        if streamed:
            report = _joined(list(engine.stream(plan, _SHORT))).report
        else:
            report = engine.generate(plan, _SHORT).report
        assert report.status in (InjectionStatus.TEXT, InjectionStatus.PARTIAL)
        assert report.reason
        fact_keys = {segment.key for segment in plan.segments if segment.kind == "fact"}
        assert fact_keys <= set(report.missing_keys)
        _check_sum(report, plan)

    def test_other_tokens_are_not_injected(self, engine: Engine) -> None:
        """A segment counts only where its tokens stand."""
        life = _life(engine)
        plan = life.stored()
        first = plan.segments[0].n_tokens
        changed = list(plan.token_ids)
        changed[first] = changed[first + 1]
        report = engine.generate(replace(plan, token_ids=tuple(changed)), _SHORT).report
        assert report.injected_tokens <= first
        assert report.status in (InjectionStatus.TEXT, InjectionStatus.PARTIAL)

    def test_forget(self, engine: Engine) -> None:
        """What is forgotten is gone, and forgetting it again finds nothing."""
        plan = _life(engine).stored()
        keys = [segment.key for segment in plan.segments]
        assert engine.locate([*keys, "0" * 40]).keys() == set(keys)
        assert engine.forget(keys) == len(keys)
        assert engine.forget(keys) == 0
        assert engine.locate(keys) == {}
        report = engine.generate(plan, _SHORT).report
        assert report.injected_tokens == 0
        assert report.status is InjectionStatus.TEXT

    async def test_overflow_is_told_before_sending(self, engine: Engine) -> None:
        """Too long a prompt is an error with size and limit, in every way of asking."""
        limit = engine.info().max_model_len
        plan = PromptPlan(token_ids=(1,) * limit)
        with pytest.raises(ContextOverflow) as caught:
            engine.generate(plan, _SHORT)
        assert caught.value.n_tokens == limit + _SHORT.max_tokens
        assert caught.value.limit == limit
        with pytest.raises(ContextOverflow):
            list(engine.stream(plan, _SHORT))
        with pytest.raises(ContextOverflow):
            await engine.agenerate(plan, _SHORT)
        with pytest.raises(ContextOverflow):
            async with aclosing(engine.astream(plan, _SHORT)) as chunks:  # type: ignore[type-var]
                async for _ in chunks:
                    pass

    async def test_streams_may_be_left_early(self, engine: Engine) -> None:
        """Closing a stream harms nobody."""
        plan = _life(engine).stored()
        with closing(engine.stream(plan, _SHORT)) as chunks:  # type: ignore[type-var]
            next(iter(chunks))
        async with aclosing(engine.astream(plan, _SHORT)) as later:  # type: ignore[type-var]
            async for _ in later:
                break
        assert engine.generate(plan, _SHORT).text

    def test_threads_share_one_engine(self, engine: Engine) -> None:
        """Each thread's answer is its own."""
        plans = [
            _Life.of(engine, (f"I live in {city}.",)).stored()
            for city in ("Oslo", "Rome", "Lima", "Cairo")
        ]
        with ThreadPoolExecutor(len(plans)) as pool:
            together = list(pool.map(lambda plan: engine.generate(plan, _SHORT), plans * 2))
        for plan, completion in zip(plans * 2, together, strict=True):
            assert completion.text
            assert completion.report.fact_ids == plan.fact_ids
            assert completion.report.status is InjectionStatus.INJECTED

    async def test_tasks_share_one_engine(self, engine: Engine) -> None:
        """Each task's answer is its own."""
        plans = [
            _Life.of(engine, (f"I live in {city}.",)).stored() for city in ("Oslo", "Rome", "Lima")
        ]
        completions = await asyncio.gather(*(engine.agenerate(plan, _SHORT) for plan in plans))
        for plan, completion in zip(plans, completions, strict=True):
            assert completion.report.fact_ids == plan.fact_ids
            assert completion.report.status is InjectionStatus.INJECTED

    def test_stats_count(self, engine: Engine) -> None:
        """Counters are whole numbers; unknown reports are left out."""
        stats = engine.stats(["no-such-report"])
        assert stats.reports == {}
        assert all(isinstance(count, int) for count in stats.counters.values())
