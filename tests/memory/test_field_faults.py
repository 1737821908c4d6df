"""Faults that users of memory layers met, by the numbers of ``docs/reliability.md``."""

from __future__ import annotations

import pytest

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
