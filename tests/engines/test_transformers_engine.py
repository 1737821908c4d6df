"""The embedded engine on a small random model: requests, batches, tiers, failures."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferscale_sdk.engines.base import Sampling  # noqa: E402
from inferscale_sdk.engines.transformers import TransformersEngine  # noqa: E402
from inferscale_sdk.errors import (  # noqa: E402
    ConfigurationError,
    ContextOverflow,
    EngineError,
    EngineUnavailable,
)
from inferscale_sdk.kv.key import UNOWNED  # noqa: E402
from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan  # noqa: E402
from inferscale_sdk.protocol import CaptureSpan, EncodeOp, Reason  # noqa: E402
from inferscale_sdk.types import InjectionStatus  # noqa: E402

Embed = Callable[..., TransformersEngine]

TOKENS = tuple((11 * i * i + 5 * i) % 250 for i in range(120))
PREAMBLE, FACT = "a" * 40, "b" * 40
ENDLESS = {"ignore_eos": True}
ANSWER = Sampling(max_tokens=8, extra=ENDLESS)


@pytest.fixture
def folder(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


@pytest.fixture
def engine(folder: Path, embed: Embed) -> TransformersEngine:
    return embed(folder)


def encode_plan(engine: TransformersEngine, **changes: Any) -> EncodePlan:
    captures = (
        CaptureSpan(key=PREAMBLE, start=0, stop=30),
        CaptureSpan(key=FACT, start=30, stop=70),
    )
    op = EncodeOp(**{"fingerprint": engine.info().fingerprint, "captures": captures, **changes})
    return EncodePlan(TOKENS, op, ("f",), ((),), captures_preamble=True)


def prompt_plan(engine: TransformersEngine, **changes: Any) -> PromptPlan:
    values: dict[str, Any] = {
        "token_ids": TOKENS,
        "segments": (
            PlannedSegment(PREAMBLE, 30, "preamble"),
            PlannedSegment(FACT, 40, "fact", "f"),
        ),
        "fact_ids": ("f",),
        "fingerprint": engine.info().fingerprint,
    }
    return PromptPlan(**{**values, **changes})


# -- injection -----------------------------------------------------------------------------


def test_a_preamble_is_learnt_on_the_way(engine: TransformersEngine) -> None:
    first = engine.generate(prompt_plan(engine), ANSWER).report
    second = engine.generate(prompt_plan(engine), ANSWER).report

    assert (first.injected_tokens, first.missing_keys) == (0, (PREAMBLE, FACT))
    assert (second.injected_tokens, second.missing_keys) == (30, (FACT,))
    assert second.status is InjectionStatus.PARTIAL
    assert second.reason == Reason.MISSING
    assert engine.stats().counters["learned_preambles"] == 1


@pytest.mark.parametrize("owner", ["", "0a"])
def test_a_learnt_preamble_counts_against_an_owner(engine: TransformersEngine, owner: str) -> None:
    engine.generate(prompt_plan(engine, owner=owner), ANSWER)
    kept = engine._runtime.ready().store.get(PREAMBLE)
    assert kept is not None
    assert kept.owner == (owner or UNOWNED)


def test_a_fact_is_not_learnt_in_place_of_a_preamble(engine: TransformersEngine) -> None:
    plan = prompt_plan(engine, segments=(PlannedSegment(FACT, 70, "fact", "f"),))

    for _ in range(2):
        assert engine.generate(plan, ANSWER).report.injected_tokens == 0


def test_one_token_is_left_to_compute(engine: TransformersEngine) -> None:
    engine.encode(encode_plan(engine))
    plan = prompt_plan(engine, token_ids=TOKENS[:70])

    completion = engine.generate(plan, ANSWER)

    assert completion.report.injected_tokens == 69
    assert completion.report.prefilled_tokens == 1
    assert completion.report.status is InjectionStatus.INJECTED
    assert completion.text == engine.generate(PromptPlan(TOKENS[:70]), ANSWER).text


def test_a_plan_for_another_model_is_text(engine: TransformersEngine) -> None:
    engine.encode(encode_plan(engine))

    report = engine.generate(prompt_plan(engine, fingerprint="f" * 32), ANSWER).report

    assert report.status is InjectionStatus.TEXT
    assert "planned for model ffff" in report.reason


def test_segments_of_a_wrong_shape_are_computed_instead(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.encode(encode_plan(engine))
    expected = engine.generate(PromptPlan(TOKENS), ANSWER).text
    get = engine._runtime.store.get

    def cut(key: str) -> Any:
        segment = get(key)
        return segment and replace(segment, data=segment.data[:2].contiguous())

    monkeypatch.setattr(engine._runtime.store, "get", cut)
    completion = engine.generate(prompt_plan(engine), ANSWER)

    assert completion.text == expected
    assert completion.report.reason == Reason.LOAD_FAILED
    assert completion.report.injected_tokens == 0
    assert engine.stats().counters["failed_loads"] == 1


def test_a_damaged_file_is_set_aside_and_computed(
    folder: Path, embed: Embed, tmp_path: Path
) -> None:
    store = tmp_path / "kv"
    engine = embed(folder, persist=True, disk_path=store)
    engine.encode(encode_plan(engine))
    engine.close()
    (file,) = store.rglob(f"{FACT}.ifs")
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)

    again = embed(folder, persist=True, disk_path=store)
    report = again.generate(prompt_plan(again), ANSWER).report

    assert (report.injected_tokens, report.missing_keys) == (30, (FACT,))
    assert again.stats().tiers["disk"]["quarantined"] == 1


def test_segments_outlive_the_engine(folder: Path, embed: Embed, tmp_path: Path) -> None:
    store = tmp_path / "kv"
    engine = embed(folder, persist=True, disk_path=store)
    engine.encode(encode_plan(engine))
    text = engine.generate(prompt_plan(engine), ANSWER).text
    engine.close()

    again = embed(folder, persist=True, disk_path=store)
    completion = again.generate(prompt_plan(again), ANSWER)

    assert completion.report.injected_tokens == 70
    assert completion.text == text
    if os.name == "posix":
        assert store.stat().st_mode & 0o777 == 0o700


def test_forgetting_reaches_the_disk(folder: Path, embed: Embed, tmp_path: Path) -> None:
    engine = embed(folder, persist=True, disk_path=tmp_path / "kv")
    engine.encode(encode_plan(engine))

    assert engine.forget([FACT, FACT, "c" * 40]) == 1
    assert list((tmp_path / "kv").rglob(f"{FACT}.ifs")) == []
    assert engine.generate(prompt_plan(engine), ANSWER).report.missing_keys == (FACT,)


def test_a_full_store_says_so(folder: Path, embed: Embed) -> None:
    engine = embed(folder, host_bytes=1 << 20)
    info = engine.info()
    n_tokens = info.max_model_len
    assert info.bytes_per_token * n_tokens <= 1 << 20
    captures = tuple(CaptureSpan(key=f"{i:040x}", start=0, stop=n_tokens) for i in range(3))
    op = EncodeOp(fingerprint=info.fingerprint, captures=captures)

    assert len(engine.encode(EncodePlan((1,) * n_tokens, op, (), ())).stored) == 3
    # What was used longest ago made room.
    assert engine.stats().tiers["host"]["evictions"] == 2


def test_a_segment_that_fits_nowhere_is_not_stored(
    tiny_model: Callable[..., Path], embed: Embed
) -> None:
    engine = embed(tiny_model(max_position_embeddings=4096), host_bytes=1 << 20)
    op = EncodeOp(
        fingerprint=engine.info().fingerprint,
        captures=(CaptureSpan(key=FACT, start=0, stop=4096),),
    )

    answer = engine.encode(EncodePlan((1,) * 4096, op, ("f",), ((),)))

    assert answer.failed == {FACT: Reason.STORE_FAILED}
    assert engine.stats().counters["failed_captures"] == 1


# -- encoding ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_chunks_do_not_change_what_is_captured(folder: Path, embed: Embed, chunk: int) -> None:
    one, other = embed(folder), embed(folder, prefill_chunk_tokens=chunk)
    for engine in (one, other):
        engine.encode(encode_plan(engine))

    for key in (PREAMBLE, FACT):
        a, b = one._runtime.store.get(key), other._runtime.store.get(key)
        assert a is not None and b is not None
        assert a.origin == b.origin == (0 if key == PREAMBLE else 30)
        torch.testing.assert_close(a.data, b.data, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "f" * 32}, Reason.WRONG_MODEL),
        ({"captures": (CaptureSpan(key=FACT, start=0, stop=121),)}, Reason.MALFORMED),
        (
            {
                "captures": (
                    CaptureSpan(key=FACT, start=0, stop=4),
                    CaptureSpan(key=FACT, start=4, stop=8),
                )
            },
            Reason.MALFORMED,
        ),
    ],
)
async def test_what_cannot_be_encoded_fails_with_a_reason(
    engine: TransformersEngine, changes: dict[str, Any], reason: Reason
) -> None:
    plan = encode_plan(engine, **changes)

    assert set(engine.encode(plan).failed.values()) == {reason}
    assert set((await engine.aencode(plan)).failed.values()) == {reason}


# -- generating ----------------------------------------------------------------------------


def test_batched_answers_are_the_single_ones(folder: Path, embed: Embed) -> None:
    """Prompts of many lengths, joining and leaving at different times."""
    single, batched = embed(folder, max_batch=1), embed(folder, max_batch=4)
    requests = [
        (PromptPlan(TOKENS[: 5 + 9 * i]), Sampling(max_tokens=3 + 5 * (i % 4), extra=ENDLESS))
        for i in range(12)
    ]
    expected = [single.generate(*request).text for request in requests]

    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(lambda request: batched.generate(*request).text, requests))

    assert found == expected


def test_batched_injection_is_the_single_one(folder: Path, embed: Embed) -> None:
    single, batched = embed(folder, max_batch=1), embed(folder, max_batch=8)
    for engine in (single, batched):
        engine.encode(encode_plan(engine))
    plans = [prompt_plan(single, token_ids=TOKENS[: 80 + 5 * i]) for i in range(8)]
    expected = [single.generate(plan, ANSWER) for plan in plans]

    with ThreadPoolExecutor(len(plans)) as pool:
        found = list(pool.map(lambda plan: batched.generate(plan, ANSWER), plans))

    assert [c.text for c in found] == [c.text for c in expected]
    assert [c.report for c in found] == [c.report for c in expected]
    assert all(c.report.injected_tokens == 70 for c in found)


def test_a_sliding_window_is_batched_right(tiny_model: Callable[..., Path], embed: Embed) -> None:
    model = tiny_model("MistralConfig", sliding_window=16)
    single, batched = embed(model, max_batch=1), embed(model, max_batch=4)
    plans = [PromptPlan(TOKENS[: 20 + 30 * i]) for i in range(4)]
    expected = [single.generate(plan, ANSWER).text for plan in plans]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda plan: batched.generate(plan, ANSWER).text, plans)) == expected


def test_a_model_without_injection_answers_several_at_once(
    tiny_model: Callable[..., Path], embed: Embed
) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    engine = embed(tiny_model(rope_parameters=dynamic))
    plans = [PromptPlan(TOKENS[: 20 + 30 * i]) for i in range(4)]
    expected = [engine.generate(plan, ANSWER).text for plan in plans]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda plan: engine.generate(plan, ANSWER).text, plans)) == expected


def test_answers_are_those_of_the_library(folder: Path, engine: TransformersEngine) -> None:
    """Against ``generate`` of transformers, which knows nothing of this engine."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([TOKENS])
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        min_new_tokens=8,
        do_sample=False,
    )
    expected = engine.tokenizer.decode(whole[0, len(TOKENS) :].tolist())

    assert engine.generate(PromptPlan(TOKENS), ANSWER).text == expected


def test_a_seed_repeats_whatever_runs_beside_it(engine: TransformersEngine) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.5, top_p=0.95, seed=3, extra=ENDLESS)
    alone = engine.generate(PromptPlan(TOKENS), sampling).text

    with ThreadPoolExecutor(4) as pool:
        seeds = [3, 4, 5, 6]
        found = list(
            pool.map(
                lambda s: engine.generate(PromptPlan(TOKENS), replace(sampling, seed=s)), seeds
            )
        )

    assert found[0].text == alone
    assert len({completion.text for completion in found}) > 1


def test_a_stop_string_ends_the_answer_before_it(engine: TransformersEngine) -> None:
    text = engine.generate(PromptPlan(TOKENS), replace(ANSWER, max_tokens=20)).text
    stop = text[len(text) // 2 :][:2]

    completion = engine.generate(PromptPlan(TOKENS), replace(ANSWER, max_tokens=20, stop=(stop,)))

    assert completion.text == text[: text.find(stop)]
    assert completion.finish_reason == "stop"
    assert completion.completion_tokens <= 20


def test_a_stop_token_ends_the_answer(engine: TransformersEngine) -> None:
    chunks = list(engine.stream(PromptPlan(TOKENS), ANSWER))
    completion = chunks[-1].completion
    assert completion is not None
    assert completion.finish_reason == "length"
    ended = replace(ANSWER, extra={**ENDLESS, "stop_token_ids": list(range(320))})

    completion = engine.generate(PromptPlan(TOKENS), ended)

    assert (completion.text, completion.finish_reason) == ("", "stop")
    assert completion.completion_tokens == 1


def wait_idle(engine: TransformersEngine) -> None:
    scheduler = engine._runtime._scheduler
    assert scheduler is not None
    deadline = time.monotonic() + 10
    while scheduler._batches or scheduler._prefill or scheduler._waiting:
        assert time.monotonic() < deadline, "the engine still works"
        time.sleep(0.01)


def test_an_abandoned_stream_stops_the_work(engine: TransformersEngine) -> None:
    long = Sampling(max_tokens=800, extra=ENDLESS)
    with closing(engine.stream(PromptPlan(TOKENS), long)) as chunks:  # type: ignore[type-var]
        next(iter(chunks))
    started = time.monotonic()
    wait_idle(engine)
    assert time.monotonic() - started < 1.0


async def test_a_cancelled_task_stops_the_work(engine: TransformersEngine) -> None:
    long = Sampling(max_tokens=800, extra=ENDLESS)
    await asyncio.to_thread(engine.info)
    task = asyncio.create_task(engine.agenerate(PromptPlan(TOKENS), long))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with aclosing(engine.astream(PromptPlan(TOKENS), long)) as chunks:  # type: ignore[type-var]
        async for _ in chunks:
            break
    await asyncio.to_thread(wait_idle, engine)


async def test_the_event_loop_is_not_held_up(engine: TransformersEngine) -> None:
    await asyncio.to_thread(engine.info)
    long = Sampling(max_tokens=100, extra=ENDLESS)
    task = asyncio.create_task(engine.agenerate(PromptPlan(TOKENS), long))
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.005)
        ticks += 1
    assert ticks > 3


def test_a_long_prompt_does_not_hold_up_an_answer(folder: Path, embed: Embed) -> None:
    engine = embed(folder, prefill_chunk_tokens=16)
    engine.info()
    first = engine.stream(PromptPlan(TOKENS), Sampling(max_tokens=200, extra=ENDLESS))
    with closing(first) as chunks:  # type: ignore[type-var]
        next(iter(chunks))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(engine.generate, PromptPlan((7,) * 900), ANSWER)
            seen = 0
            while not other.done() and next(iter(chunks), None) is not None:
                seen += 1
            assert other.result().completion_tokens == 8
    assert seen > 10


# -- failures ------------------------------------------------------------------------------


def test_a_failing_model_fails_its_requests_and_no_others(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info()
    assert engine._runtime._core is not None
    runner = engine._runtime._core.runner
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> Any:
            raise RuntimeError("out of memory")

        patch.setattr(runner, "step", broken)
        with pytest.raises(EngineError, match="out of memory"):
            engine.generate(PromptPlan(TOKENS), ANSWER)
        patch.setattr(runner, "prefill", broken)
        with pytest.raises(EngineError, match="out of memory"):
            engine.encode(encode_plan(engine))
    assert engine.generate(PromptPlan(TOKENS), ANSWER).text


def test_closing_fails_what_is_under_way(engine: TransformersEngine) -> None:
    chunks = engine.stream(PromptPlan(TOKENS), Sampling(max_tokens=800, extra=ENDLESS))
    next(chunks)
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        for _ in chunks:
            pass
    with pytest.raises(EngineUnavailable, match="closed"):
        engine.generate(PromptPlan(TOKENS), ANSWER)


async def test_aclose(engine: TransformersEngine) -> None:
    await engine.aclose()
    with pytest.raises(EngineUnavailable):
        await engine.agenerate(PromptPlan(TOKENS))


def test_an_empty_prompt_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(EngineError, match="no tokens"):
        engine.generate(PromptPlan(()))


def test_errors_of_a_plan_are_raised_by_the_call_itself(engine: TransformersEngine) -> None:
    with pytest.raises(ContextOverflow):
        engine.stream(PromptPlan((1,) * 1024), ANSWER)
    with pytest.raises(ConfigurationError, match="top_p"):
        engine.stream(PromptPlan(TOKENS), Sampling(top_p=2.0))


def test_max_model_len_is_kept_to(folder: Path, embed: Embed) -> None:
    engine = embed(folder, max_model_len=300)
    assert engine.info().max_model_len == 300
    with pytest.raises(ContextOverflow):
        engine.generate(PromptPlan((1,) * 293), ANSWER)
    assert engine.generate(PromptPlan((1,) * 292), ANSWER).completion_tokens == 8


def test_a_context_too_short_for_the_probe_is_text(folder: Path, embed: Embed) -> None:
    info = embed(folder, max_model_len=100).info()
    assert not info.can_inject
    assert "shorter than the probe's" in info.reason


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"host_bytes": 5}, "host_bytes=5"),
        ({"max_batch": 0}, "max_batch=0"),
        ({"prefill_chunk_tokens": 0}, "prefill_chunk_tokens=0"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"device": "nowhere"}, "device='nowhere'"),
        ({"max_model_len": 5000}, "max_model_len=5000"),
    ],
)
def test_wrong_arguments_are_told_early(
    folder: Path, embed: Embed, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigurationError, match=what):
        embed(folder, **options)


def test_a_missing_model_is_told_early(tmp_path: Path, embed: Embed) -> None:
    with pytest.raises(ConfigurationError, match="not a folder"):
        embed(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no model can be loaded"):
        embed(tmp_path / "empty")


def test_the_fingerprint_is_of_model_and_dtype(folder: Path, embed: Embed) -> None:
    names = {embed(folder, dtype=dtype).info().fingerprint for dtype in ("float32", "bfloat16")}
    assert len(names) == 2
    assert embed(folder).info().fingerprint in names


def test_info_says_what_there_is(engine: TransformersEngine) -> None:
    info = engine.info()
    assert info.model.startswith("model-")
    assert info.bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert info.block_size == 0
    assert info.details["device"] == "cpu"
    assert info.details["n_layers"] == 3
    assert info.details["unrotated_key_error"] < 1e-5


def test_a_dropped_engine_leaves_no_thread(folder: Path) -> None:
    engine = TransformersEngine(folder, device="cpu", persist=False)
    engine.info()
    assert engine._runtime._scheduler is not None
    thread: threading.Thread = engine._runtime._scheduler._thread
    assert thread.is_alive()

    del engine
    gc.collect()

    thread.join(5.0)
    assert not thread.is_alive()


def test_answers_come_before_encodings(folder: Path, embed: Embed) -> None:
    engine = embed(folder, prefill_chunk_tokens=4)
    n_encodings = 6
    order: list[str] = []
    with ThreadPoolExecutor(n_encodings + 1) as pool:

        def encode(_: int) -> None:
            engine.encode(encode_plan(engine))
            order.append("encoded")

        waiting = [pool.submit(encode, i) for i in range(n_encodings)]
        while not order:
            time.sleep(0.001)
        engine.generate(PromptPlan(TOKENS[:8]), Sampling(max_tokens=1, extra=ENDLESS))
        order.append("answered")
        for each in waiting:
            each.result()
    assert order.index("answered") < n_encodings
