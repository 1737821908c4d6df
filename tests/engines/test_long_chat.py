"""A long chat with memory, on a real server: what of it is computed with each turn."""

from __future__ import annotations

import pytest

from inferscale_sdk import Memory
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.testing.fake_embedder import FakeEmbedder


@pytest.mark.engine
@pytest.mark.field_fault(16)
def test_memory_in_a_long_chat_leaves_the_history_in_the_prefix_cache(engine, tmp_path) -> None:
    """The same facts again: only the new turn is computed. Other facts: never the facts."""
    with Memory(
        engine, live_facts=0, path=tmp_path / "m", embedder=FakeEmbedder(), background=False
    ) as memory:
        memory.add(
            [f"Room {i} has {i + 2} windows to the north." for i in range(12)], user_id="ada"
        )
        assert memory.wait_encoded(timeout=60)
        facts = memory.search("windows of room 3", user_id="ada", top_k=8)
        chat = [{"role": "user", "content": "Tell me about the rooms, at length. " * 12}]
        computed = []
        for turn in range(4):
            plan = memory.prepare(chat, facts=facts, user_id="ada", max_tokens=8)
            report = memory.complete(plan, sampling=Sampling(max_tokens=8)).report
            computed.append((report.prefilled_tokens, report.prompt_tokens))
            chat += [
                {"role": "assistant", "content": "They are bright and quiet. " * 12},
                {"role": "user", "content": f"And what else about number {turn}? " * 12},
            ]
        growth = computed[-1][1] - computed[-2][1]
        # The new turns, and the last block, which the engine always computes again.
        assert all(one <= growth + 128 for one, _ in computed[1:])
        assert computed[-1][0] < computed[-1][1] / 2
        # Other facts: the history behind them is computed again, the facts are not.
        others = memory.search("windows of room 11", user_id="ada", top_k=3)
        plan = memory.prepare(chat, facts=others, user_id="ada", max_tokens=8)
        report = memory.complete(plan, sampling=Sampling(max_tokens=8)).report
        assert report.injected_tokens > 0
        assert report.prefilled_tokens <= report.prompt_tokens - report.injected_tokens
