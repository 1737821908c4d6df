"""Faults that users of memory layers met, by the numbers of ``docs/reliability.md``."""

from __future__ import annotations

import pytest

from inferscale_sdk import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder


@pytest.mark.field_fault(17)
def test_adding_costs_the_same_however_much_is_known(make_memory, server) -> None:
    """What one more fact sends to the embedder and the engine does not grow with the store."""
    embedder = FakeEmbedder()
    memory = make_memory(embedder=embedder, window=None)  # the default one
    costs = []
    for n_known in (40, 400):
        missing = n_known - memory.count(user_id="ada")
        memory.add(
            [f"Fact {i} of {n_known} is about word{i}." for i in range(missing)], user_id="ada"
        )
        memory.wait_encoded(timeout=60)
        embedded, tokens = embedder.calls, prompt_tokens(server)
        memory.add("One more fact about the sea.", user_id="ada")
        memory.wait_encoded(timeout=60)
        costs.append((embedder.calls - embedded, prompt_tokens(server) - tokens))
    assert costs[0][0] == costs[1][0] == 1
    assert costs[1][1] <= costs[0][1] * 1.5


def prompt_tokens(server) -> int:
    """Prompt tokens of all encodings so far."""
    bodies = [*server.bodies("/v1/completions"), *server.bodies("/v1/chat/completions")]
    return sum(
        len(body["prompt"])
        for body in bodies
        if (body.get("kv_transfer_params") or {}).get("inferscale", {}).get("op") == "encode"
    )


@pytest.mark.engine
@pytest.mark.field_fault(16)
@pytest.mark.xfail(reason="the history behind injected memory is computed again with each turn")
def test_memory_in_a_long_chat_leaves_the_history_in_the_prefix_cache(engine, tmp_path) -> None:
    """The same facts again: only the new turn is computed. Other facts: never the facts."""
    with Memory(engine, path=tmp_path / "m", embedder=FakeEmbedder(), background=False) as memory:
        memory.add(
            [f"Room {i} has {i + 2} windows to the north." for i in range(12)], user_id="ada"
        )
        assert memory.wait_encoded(timeout=60)
        facts = memory.search("windows of room 3", user_id="ada", top_k=8)
        chat = [{"role": "user", "content": "Tell me about the rooms, at length. " * 12}]
        computed = []
        for turn in range(4):
            plan = memory.prepare(chat, facts=facts, user_id="ada", max_tokens=8)
            report = memory.complete(plan).report
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
        report = memory.complete(plan).report
        assert report.injected_tokens > 0
        assert report.prefilled_tokens <= report.prompt_tokens - report.injected_tokens
