"""The embedded engine on a small random model: answers, alone and in batches, and ending them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers_scene import ANSWER, ENDLESS, TOKENS, encode_plan, prompt_plan  # noqa: E402

from inferscale_sdk.engines.base import Sampling  # noqa: E402
from inferscale_sdk.engines.transformers import TransformersEngine  # noqa: E402
from inferscale_sdk.prompt.base import PromptPlan  # noqa: E402

Embed = Callable[..., TransformersEngine]


@pytest.fixture
def engine(folder: Path, embed: Embed) -> TransformersEngine:
    return embed(folder)


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
