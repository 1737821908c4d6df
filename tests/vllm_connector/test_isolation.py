"""Several users at once: each request gets its own segments and nobody else's."""

from __future__ import annotations

import random

import pytest
from connector_harness import Harness

WINDOWS = {
    "alice": "- Alice lives in Oslo and paints boats.\n- Alice has two cats.\n",
    "bob": "- Bob drives a tram in Lisbon.\n- Bob is allergic to nuts and cats.\n",
}


@pytest.fixture(scope="module")
def users(harness: Harness) -> dict[str, list[tuple[str, list[int]]]]:
    """The same eight fact texts of two users, encoded behind different windows."""
    facts = [
        harness.encode_text(f"- The meeting number {i} is in room {i * 3}.\n") for i in range(8)
    ]
    stored = {}
    for name, window in WINDOWS.items():
        prompt = harness.encode_text(window)
        bounds = []
        for fact in facts:
            bounds.append((len(prompt), len(prompt) + len(fact)))
            prompt = prompt + fact
        keys = harness.encode(prompt, bounds, tag=name)
        stored[name] = list(zip(keys, facts, strict=True))
    assert not {k for k, _ in stored["alice"]} & {k for k, _ in stored["bob"]}
    return stored


def test_two_users_interleaved_200_times(harness: Harness, users) -> None:
    rng = random.Random(7)
    question = harness.encode_text("Where is meeting number 3?\nAnswer:")
    order = [5, 1, 3, 7, 0]
    plain_prompt = [t for i in order for t in users["alice"][i][1]] + question
    # A salt of its own, the same before and after: prefix caching is on for it.
    before = harness.ask(plain_prompt, salt="plain", n=8, logprobs=3)

    requests, wanted = [], []
    for _ in range(200):
        name = rng.choice(list(users))
        chosen = rng.sample(users[name], rng.randint(1, 8))
        prompt = [t for _, tokens in chosen for t in tokens] + question
        op, salt = harness.inject_op([(key, len(tokens)) for key, tokens in chosen])
        # Salts repeat, so that vLLM's own prefix cache takes part as it does in production.
        requests.append((prompt, op, f"{name}:{salt.split(':')[1]}"))
        wanted.append([key for key, _ in chosen])
    outcomes = []
    for start in range(0, 200, 25):
        outcomes += harness.ask_many(requests[start : start + 25], n=2)

    for outcome, keys, (prompt, _, _) in zip(outcomes, wanted, requests, strict=True):
        answer = outcome.answer
        assert answer["reason"] == "" and not answer["missing_keys"]
        # The worker's own record: exactly these, or the rest of these behind a local prefix hit.
        if answer["loaded_keys"]:
            assert answer["loaded_keys"] == keys[len(keys) - len(answer["loaded_keys"]) :]
        assert answer["loaded_tokens"] + answer["local_tokens"] == len(prompt) - len(question)

    after = harness.ask(plain_prompt, salt="plain", n=8, logprobs=3)
    fresh = harness.ask(plain_prompt, n=8, logprobs=3)
    assert before.n_cached == 0
    assert after.token_ids == before.token_ids == fresh.token_ids
    assert fresh.logprobs == before.logprobs


def test_identical_texts_differ_in_kv(harness: Harness, users) -> None:
    (alice, tokens), (bob, same) = users["alice"][2], users["bob"][2]
    assert tokens == same
    assert not harness.resident(alice).data.equal(harness.resident(bob).data)
