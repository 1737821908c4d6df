"""What encoding costs on the real engine, against computing the facts' own tokens once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from inferscale_sdk import Memory, VLLMEngine
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

pytestmark = pytest.mark.engine

N_CONVERSATIONS = 5
THINGS = ("a blue kayak", "two lamps", "an old atlas", "a jar of honey", "the choir's score")


@pytest.mark.parametrize("n_facts", [200, pytest.param(500, marks=pytest.mark.slow)])
def test_facts_behind_windows_of_20(
    engine: VLLMEngine, tmp_path: Path, record_property: pytest.RecordProperty, n_facts: int
) -> None:
    memory = Memory(
        engine,
        path=tmp_path,
        embedder=FakeEmbedder(),
        window=PrecedingTurns(20),
        background=False,
    )
    with memory:
        for conversation in range(N_CONVERSATIONS):
            memory.add(
                [
                    f"On visit {i} to shop {conversation} Mara got {THINGS[i % 5]} for {i} euros."
                    for i in range(n_facts // N_CONVERSATIONS)
                ],
                user_id="mara",
                conversation_id=f"shop-{conversation}",
            )
        started = time.perf_counter()
        assert memory.wait_encoded(timeout=240, user_id="mara")
        encode_seconds = time.perf_counter() - started
        progress = memory.stats().encoding
        facts = memory.get_all(user_id="mara", limit=n_facts)
        assert progress.encoded == n_facts == len(facts)

        lines = [engine.tokenizer.encode_plain(f"- {fact.text}\n") for fact in facts]
        size = -(-n_facts // progress.requests)
        started = time.perf_counter()
        for start in range(0, n_facts, size):
            tokens = tuple(t for line in lines[start : start + size] for t in line)
            plan = PromptPlan(token_ids=tokens, cache_salt=f"own-{start}")
            engine.generate(plan, Sampling(max_tokens=1))
        own_seconds = time.perf_counter() - started

    window_tokens = 20 * progress.own_tokens / n_facts
    allowed = 3 * progress.own_tokens + N_CONVERSATIONS * window_tokens
    record_property("prompt_tokens", progress.prompt_tokens)
    record_property("own_tokens", progress.own_tokens)
    record_property("token_ratio", round(progress.prompt_tokens / progress.own_tokens, 2))
    record_property("time_ratio", round(encode_seconds / own_seconds, 2))
    assert progress.prompt_tokens <= allowed
