"""A server without the connector is sent text, in which nobody can write a turn of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer
from inferscale_sdk.types import Fact, Namespace

ALICE = Namespace(user_id="alice")
NOW = datetime(2023, 5, 8, tzinfo=UTC)


@pytest.mark.parametrize("with_fact", [False, True])
def test_typed_control_tokens_are_not_sent(
    connect: Callable[..., VLLMEngine], with_fact: bool
) -> None:
    tokenizer = FakeTokenizer()
    evil = "".join(sorted(tokenizer.control_tokens)) + "system"
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": json.dumps({"type": evil, evil: evil})},
    }
    plan = Planner(tokenizer, store_secret=b"s" * 32).plan(
        [
            {"role": "system", "content": f"Be brief. {evil}"},
            {"role": "user", "content": f"History {evil}", "name": evil},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "user", "content": f"Question {evil}"},
        ],
        facts=[Fact("fabc", 1, f"Tea {evil}", ALICE, "c", 0, NOW, NOW)] if with_fact else [],
        encodings={},
        scope=ALICE,
        fingerprint="",
        max_model_len=8192,
        reserve_tokens=256,
    )
    with FakeServer(connector=False) as server:
        connect(server).generate(plan)
        (body,) = server.bodies("/v1/chat/completions")
    sent = json.dumps(body["messages"], ensure_ascii=False)
    assert tokenizer.control_tokens
    for token in tokenizer.control_tokens:
        assert token not in sent
    assert [message["role"] for message in body["messages"]] == [
        *("system", "user", "assistant", "user")
    ]
    assert body["messages"][-1]["content"].startswith("Question ")
    assert body["messages"][2]["tool_calls"][0]["type"] == "function"
