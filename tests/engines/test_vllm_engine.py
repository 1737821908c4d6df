"""The vLLM client against a fake server: whom it finds, what it sends and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inferscale_sdk.config import settings
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.errors import (
    ConfigurationError,
    EngineError,
    IncompatibleModel,
)
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.protocol import FIELD, PROBE_TOKENS, ProbeVerdict, Reason
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.plans import KEYS, TOKENS
from inferscale_sdk.testing.plans import sample_encode_plan as encode_plan
from inferscale_sdk.testing.plans import sample_prompt_plan as prompt_plan
from inferscale_sdk.types import InjectionStatus, Message

Connect = Callable[..., VLLMEngine]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


# -- who is there --------------------------------------------------------------------------


def test_info_probes_once(server: FakeServer, client: VLLMEngine) -> None:
    info = client.info()
    assert (info.model, info.fingerprint, info.can_inject) == ("fake", "fake-model", True)
    assert (info.max_model_len, info.block_size, info.bytes_per_token) == (8192, 16, 64)
    assert client.info() is info
    assert client.info(refresh=True).probe.status == "exact"
    (probe,) = [b for b in server.bodies(COMPLETIONS) if len(b["prompt"]) == PROBE_TOKENS]
    assert set(probe["prompt"]) == {7}
    assert probe["max_tokens"] == 2
    assert len(server.operations("probe")) == 1


def test_control_requests_share_no_cache(server: FakeServer, client: VLLMEngine) -> None:
    client.info()
    client.stats()
    client.forget(["a" * 40])
    client.encode(encode_plan())
    bodies = server.bodies(COMPLETIONS)
    salts = [body["cache_salt"] for body in bodies]
    assert len(set(salts)) == len(salts) == 5
    assert all(body["ignore_eos"] for body in bodies)


def test_without_connector_it_is_text_with_one_warning(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeServer(connector=False) as server:
        client = connect(server)
        with caplog.at_level(logging.WARNING, logger="inferscale_sdk"):
            completion = client.generate(prompt_plan())
            client.info(refresh=True)
            client.generate(prompt_plan())
        assert [r.message for r in caplog.records if "prompt text" in r.message] == [
            caplog.records[0].message
        ]
        assert client.info().can_inject is False
        assert "connector" in client.info().reason
        assert completion.report.status is InjectionStatus.TEXT
        assert "connector" in completion.report.reason
        body = server.bodies(CHAT)[0]
        assert body["kv_transfer_params"] == {"prompt_token_ids": list(TOKENS)}
        assert body["cache_salt"] == "ifs1:who:text"
        assert body["messages"][0] == {"role": "system", "content": "notes"}
        with pytest.raises(IncompatibleModel, match="connector"):
            client.encode(encode_plan())
        assert client.forget(["a" * 40]) == 0
        assert client.stats().counters == {}


def test_a_model_that_fails_the_probe_is_text(connect: Connect) -> None:
    verdict = ProbeVerdict(status="text_only", reason="layer 3 turns the other way")
    with FakeServer(probe=verdict) as server:
        client = connect(server)
        assert client.info().can_inject is False
        report = client.generate(prompt_plan()).report
        assert report.status is InjectionStatus.TEXT
        assert report.reason == "layer 3 turns the other way"
        assert server.operations("inject") == []


def test_the_secret_is_used_and_missed(connect: Connect) -> None:
    secret = b"0123456789abcdef"
    with FakeServer(secret=secret) as server:
        with_secret = connect(server, secret=secret)
        with_secret.encode(encode_plan())
        assert with_secret.generate(prompt_plan()).report.status is InjectionStatus.INJECTED
        without = connect(server)
        assert without.info().can_inject is False
        assert "INFERSCALE_SERVER_SECRET" in without.info().reason
        with pytest.raises(EngineError, match="SECRET"):
            without.forget(["a" * 40])


def test_the_secret_may_be_text(connect: Connect) -> None:
    with FakeServer(secret=b"0123456789abcdef") as server:
        assert connect(server, secret="0123456789abcdef").info().can_inject


@pytest.mark.parametrize("secret", ["opensesame", b"opensesame", b"", ["opensesame"]])
def test_a_secret_that_no_server_has_is_refused_at_once(secret: Any) -> None:
    for start in (
        lambda: VLLMEngine("http://127.0.0.1:9", secret=secret),
        lambda: VLLMEngine.launch("no-such-model", python="/no/python", secret=secret),
    ):
        with pytest.raises(ConfigurationError, match=r"secret .* at least 16") as caught:
            start()
        assert "sesame" not in str(caught.value)


def test_the_secret_comes_from_the_settings(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERSCALE_SERVER_SECRET", "0123456789abcdef")
    settings.cache_clear()
    try:
        with FakeServer(secret=b"0123456789abcdef") as server:
            assert connect(server).info().can_inject
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_api_key(connect: Connect) -> None:
    with FakeServer(api_key="right") as server:
        assert connect(server, api_key="right").info().model == "fake"
        with pytest.raises(EngineError, match="401: Unauthorized"):
            connect(server, api_key="wrong").info()


def test_a_model_that_is_not_served(server: FakeServer, connect: Connect) -> None:
    assert connect(server, model="fake").info().model == "fake"
    with pytest.raises(ConfigurationError, match=r"'other'.*\['fake'\]"):
        connect(server, model="other").info()


# -- encode, inject, report ----------------------------------------------------------------


def test_encode_then_inject(server: FakeServer, client: VLLMEngine) -> None:
    answer = client.encode(encode_plan())
    assert answer.stored == KEYS
    assert server.bodies(COMPLETIONS)[-1]["max_tokens"] == 2
    completion = client.generate(prompt_plan(), Sampling(max_tokens=9, stop=("x",), seed=3))
    assert completion.text == "one two three"
    assert completion.finish_reason == "stop"
    assert completion.completion_tokens == 3
    report = completion.report
    assert report.status is InjectionStatus.INJECTED
    assert (report.injected_tokens, report.cached_tokens, report.prefilled_tokens) == (11, 0, 9)
    assert (report.memory_tokens, report.fact_ids) == (6, ("fabc",))
    body = server.bodies(CHAT)[-1]
    assert body["cache_salt"] == prompt_plan().cache_salt
    assert body["kv_transfer_params"]["prompt_token_ids"] == list(TOKENS)
    assert (body["max_tokens"], body["stop"], body["seed"]) == (9, ["x"], 3)
    # The conversation itself is not sent twice.
    assert body["messages"] == [{"role": "user", "content": "."}]


def test_partial_and_missing(server: FakeServer, client: VLLMEngine) -> None:
    client.encode(encode_plan())
    client.forget([KEYS[1]])
    report = client.generate(prompt_plan()).report
    assert report.status is InjectionStatus.PARTIAL
    assert (report.injected_tokens, report.prefilled_tokens) == (5, 15)
    assert (report.reason, report.missing_keys) == ("missing", (KEYS[1],))
    client.forget(KEYS)
    assert client.generate(prompt_plan()).report.status is InjectionStatus.TEXT


def test_another_models_encoding_is_refused(server: FakeServer, client: VLLMEngine) -> None:
    plan = encode_plan()
    other = replace(plan, op=plan.op.model_copy(update={"fingerprint": "other"}))
    client.info()
    answer = client.encode(other)
    assert answer.stored == ()
    assert answer.failed == dict.fromkeys(KEYS, Reason.WRONG_MODEL)


def test_a_plan_for_another_model_is_text(server: FakeServer, client: VLLMEngine) -> None:
    report = client.generate(prompt_plan(fingerprint="other")).report
    assert report.status is InjectionStatus.TEXT
    assert "planned for model other" in report.reason
    assert server.operations("inject") == []


def test_a_restarted_server_is_probed_again(server: FakeServer, client: VLLMEngine) -> None:
    client.encode(encode_plan())
    server.connector.probed = False
    report = client.generate(prompt_plan()).report
    assert report.status is InjectionStatus.TEXT
    assert "not_probed" in report.reason
    assert client.generate(prompt_plan()).report.status is InjectionStatus.INJECTED


def test_plain_prompts_carry_no_operation(server: FakeServer, client: VLLMEngine) -> None:
    plan = PromptPlan(token_ids=TOKENS, cache_salt="ifs1:who:text")
    report = client.generate(plan).report
    assert report.status is InjectionStatus.NONE
    assert FIELD not in server.bodies(CHAT)[0]["kv_transfer_params"]


def test_extra_fields_pass_and_ours_do_not(server: FakeServer, client: VLLMEngine) -> None:
    client.generate(prompt_plan(), Sampling(extra={"logprobs": True, "top_k": 4}))
    assert server.bodies(CHAT)[0]["top_k"] == 4
    for name in ("cache_salt", "kv_transfer_params", "messages", "n", "stream"):
        with pytest.raises(ConfigurationError, match=name):
            client.generate(prompt_plan(), Sampling(extra={name: 1}))


def test_a_server_that_ignores_exact_tokens(server: FakeServer, client: VLLMEngine) -> None:
    server.faults.ignore_tokens = True
    with pytest.raises(EngineError, match=r"20 were sent.*vLLM 0\.32"):
        client.generate(prompt_plan())


def test_an_old_server_without_connector_answers_from_messages(connect: Connect) -> None:
    with FakeServer(connector=False) as server:
        server.faults.ignore_tokens = True
        assert connect(server).generate(prompt_plan()).text == "one two three"


def test_bad_arguments() -> None:
    for url in ("127.0.0.1:8000", "ftp://x", "", "http://"):
        with pytest.raises(ConfigurationError, match="base_url"):
            VLLMEngine(url)
    for options in ({"timeout_seconds": 0}, {"connect_timeout_seconds": -1}, {"retries": -1}):
        with pytest.raises(ConfigurationError, match="retries"):
            VLLMEngine("http://127.0.0.1:1", **options)


def test_urls_with_the_api_path(server: FakeServer, connect: Connect) -> None:
    client = VLLMEngine(server.base_url + "/v1/")
    assert client.base_url == server.base_url
    assert client.info().model == "fake"
    client.close()
    client.close()


def test_only_a_launched_server_restarts(client: VLLMEngine) -> None:
    assert client.pid is None
    client.kill()
    with pytest.raises(ConfigurationError, match="not started by this engine"):
        client.restart()


def test_mapping_messages_pass(connect: Connect) -> None:
    with FakeServer(connector=False) as server:
        plan = prompt_plan(messages=({"role": "tool", "content": "x"}, Message("user", "q", "Ann")))
        connect(server).generate(plan)
        assert server.bodies(CHAT)[0]["messages"] == [
            {"role": "tool", "content": "x"},
            {"role": "user", "content": "q", "name": "Ann"},
        ]
