"""``ChatInferScale`` on a fake server."""

from __future__ import annotations

import logging

import httpx
import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.exceptions import ContextOverflowError
from langchain_core.globals import set_llm_cache
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableLambda

import integrations.langchain as alias
import langchain_inferscale
from inferscale_sdk import AsyncMemory, ConfigurationError, ContextOverflow, NamespaceError
from langchain_inferscale import ChatInferScale


@pytest.fixture
def chat(memory):
    return ChatInferScale(memory=memory, user_id="ann")


@pytest.fixture
def shared(memory):
    """One object for all users."""
    return ChatInferScale(memory=memory)


@pytest.fixture
def cache():
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


def ask(marker: str):
    return [SystemMessage(f"Notes: {marker}"), HumanMessage("What do you know?")]


def facts(message) -> list[str]:
    return message.response_metadata["inferscale"]["fact_ids"]


def test_both_names_give_the_same_objects():
    for name in langchain_inferscale.__all__:
        assert getattr(alias, name) is getattr(langchain_inferscale, name)
    assert dir(alias) == sorted(langchain_inferscale.__all__)


def test_whole_answers_report_what_was_injected(chat, marker):
    chat.invoke(ask(marker("dog")))
    message = chat.invoke(ask(marker("dog")))
    report = message.response_metadata["inferscale"]
    assert report["status"] == "injected"
    assert message.usage_metadata["input_token_details"]["cache_read"] == report["injected_tokens"]
    assert report["injected_tokens"] > report["memory_tokens"] > 0
    assert message.usage_metadata["input_tokens"] == report["prompt_tokens"]


def test_streams_report_at_the_end_and_count_once(chat, marker):
    chat.invoke(ask(marker("dog")))
    total = None
    for chunk in chat.stream(ask(marker("dog"))):
        total = chunk if total is None else total + chunk
    assert isinstance(total, AIMessageChunk)
    report = total.response_metadata["inferscale"]
    assert report["status"] == "injected"
    assert report["ttft_ms"] > 0
    assert total.usage_metadata["input_tokens"] == report["prompt_tokens"]
    assert total.usage_metadata["input_token_details"]["cache_read"] == report["injected_tokens"]


async def test_async_calls_do_the_same(chat, marker):
    await chat.ainvoke(ask(marker("dog")))
    message = await chat.ainvoke(ask(marker("dog")))
    assert message.response_metadata["inferscale"]["status"] == "injected"
    total = None
    async for chunk in chat.astream(ask(marker("dog"))):
        total = chunk if total is None else total + chunk
    assert total.response_metadata["inferscale"]["status"] == "injected"
    first, second = await chat.abatch([ask(marker("dog")), ask(marker("peanuts"))])
    assert facts(first) != facts(second)


def test_batches_keep_their_facts_apart(chat, marker):
    answers = chat.batch([ask(marker(w)) for w in ("dog", "peanuts", "chess")])
    assert len({tuple(facts(a)) for a in answers}) == 3


def test_an_async_memory_serves_as_well(memory, marker):
    chat = ChatInferScale(memory=AsyncMemory.wrap(memory), user_id="ann")
    assert facts(chat.invoke(ask(marker("dog"))))


# -- whose memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.invoke(x, user_id="ann"),
        lambda m, x: m.invoke(x, inferscale={"user_id": "ann"}),
        lambda m, x: m.bind(user_id="ann").invoke(x),
        lambda m, x: m.invoke(x, config={"configurable": {"user_id": "ann"}}),
        lambda m, x: m.invoke(x, config={"configurable": {"langgraph_user_id": "ann"}}),
        lambda m, x: m.invoke(x, config={"configurable": {"inferscale": {"user_id": "ann"}}}),
        lambda m, x: m.with_config(configurable={"user_id": "ann"}).invoke(x),
        lambda m, x: m.batch([x], config={"configurable": {"user_id": "ann"}})[0],
        lambda m, x: (RunnableLambda(lambda y: y) | m).invoke(
            x, config={"configurable": {"user_id": "ann"}}
        ),
        lambda m, x: RunnableLambda(lambda y: m.invoke(y)).invoke(
            x, config={"configurable": {"user_id": "ann"}}
        ),
        lambda m, x: list(m.stream(x, config={"configurable": {"user_id": "ann"}}))[-2],
    ],
)
def test_the_user_may_be_named_in_the_call_or_its_configuration(shared, marker, call):
    assert facts(call(shared, ask(marker("dog"))))


async def test_async_calls_see_the_configuration_as_well(shared, marker):
    config = {"configurable": {"user_id": "ann"}}
    assert facts(await shared.ainvoke(ask(marker("dog")), config=config))
    *_, end, _ = [chunk async for chunk in shared.astream(ask(marker("dog")), config=config)]
    assert facts(end)


def test_handles_without_a_user_are_a_clear_error(shared, marker):
    with pytest.raises(NamespaceError, match="user_id"):
        shared.invoke(ask(marker("dog")))


def test_a_chat_without_handles_needs_no_user(shared):
    assert shared.invoke("hello").content == "one two three"


def test_two_users_in_one_call_are_an_error(chat, marker):
    with pytest.raises(NamespaceError, match="'ann' in one place and 'bob' in another"):
        chat.invoke(ask(marker("dog")), config={"configurable": {"user_id": "bob"}})


def test_unknown_arguments_of_ours_are_named(chat):
    with pytest.raises(ConfigurationError, match="handle'"):
        chat.invoke("hello", inferscale={"handle": "x"})


def test_foreign_handles_are_inert_and_logged_without_their_text(chat, marker, prompts, caplog):
    with caplog.at_level(logging.INFO):
        message = chat.invoke(ask(marker("4711", "bob")))
    assert message.response_metadata["inferscale"]["handles_inert"] == 1
    assert not facts(message)
    assert not any("4711" in text or "[[ifs:" in text for text in prompts())
    assert "inert" in caplog.text
    assert "4711" not in caplog.text


# -- carriers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "carry",
    [
        lambda m: {"input": [HumanMessage("hi", additional_kwargs={"inferscale": m})]},
        lambda m: {"input": [HumanMessage("hi", additional_kwargs={"inferscale": [m]})]},
        lambda m: {"input": [HumanMessage([{"type": "text", "text": f"{m} hi"}])]},
        lambda m: {"input": "hi", "inferscale": {"handles": [m]}},
        lambda m: {"input": "hi", "config": {"configurable": {"inferscale": {"handles": [m]}}}},
        lambda m: {
            "input": [
                HumanMessage("hi"),
                AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "1"}]),
                ToolMessage("found one", tool_call_id="1", artifact=[_document(m)]),
            ]
        },
    ],
    ids=["kwargs", "kwargs list", "block", "call", "configurable", "artifact"],
)
def test_handles_ride_beside_the_text_as_well(chat, marker, carry):
    call = dict(carry(marker("dog")))
    assert len(facts(chat.invoke(call.pop("input"), **call))) == 1


def _document(marker: str) -> Document:
    return Document(page_content=marker, metadata={"inferscale": marker}, id=marker)


def test_a_document_that_gave_its_text_does_not_come_in_twice(chat, marker):
    document = Document(page_content="the fact", metadata={"inferscale": marker("dog")})
    calls = [{"name": "t", "args": {}, "id": "1"}]
    messages = [
        HumanMessage("hi"),
        AIMessage("", tool_calls=calls),
        ToolMessage("the fact", tool_call_id="1", artifact=[document]),
    ]
    assert not facts(chat.invoke(messages))


# -- requests ------------------------------------------------------------------------------------


def test_extra_bodies_are_laid_over_one_another(memory, marker, server):
    chat = ChatInferScale(
        memory=memory, user_id="ann", extra_body={"top_k": 5, "kv_transfer_params": {"a": 1}}
    )
    chat.invoke(ask(marker("dog")), extra_body={"min_p": 0.1, "cache_salt": "mine"})
    body = server.bodies("/v1/chat/completions")[-1]
    assert body["top_k"] == 5
    assert body["min_p"] == 0.1
    assert body["kv_transfer_params"]["a"] == 1
    assert body["kv_transfer_params"]["inferscale"]["op"] == "inject"
    assert body["cache_salt"] != "mine"
    assert chat.extra_body == {"top_k": 5, "kv_transfer_params": {"a": 1}}


def test_no_setting_of_ours_reaches_the_server(chat, marker, server):
    chat.invoke(ask(marker("dog")), user_id="ann", inferscale={"handles": []})
    body = server.bodies("/v1/chat/completions")[-1]
    assert not {"user_id", "inferscale", "_inferscale_turn", "inferscale_ids"} & body.keys()


def test_keys_of_openai_are_not_sent(memory, server, monkeypatch):
    chat = ChatInferScale(memory=memory, user_id="ann")
    assert chat.openai_api_key.get_secret_value() == "EMPTY"
    assert str(chat.root_client.base_url).startswith(server.base_url)


def test_a_server_must_be_named_once(memory, monkeypatch):
    with pytest.raises(ConfigurationError, match="base_url"):
        ChatInferScale(model="m")
    with pytest.raises(ConfigurationError, match="leave it out"):
        ChatInferScale(memory=memory, base_url="http://127.0.0.1:1")


def test_too_long_a_conversation_is_known_to_middleware(chat, server):
    server.connector.max_model_len = 300
    chat.bridge.engine.info(refresh=True)
    with pytest.raises(ContextOverflowError, match="300") as caught:
        chat.invoke("x" * 400)
    assert isinstance(caught.value, ContextOverflow)


class _FailsOnInjection(httpx.HTTPTransport):
    """A server whose connector makes every request fail that injects."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if b'"op":"inject"' in request.content.replace(b" ", b""):
            return httpx.Response(500, json={"error": {"message": "no injection today"}})
        return super().handle_request(request)


def test_a_server_that_fails_on_injection_answers_from_text(memory, marker):
    with httpx.Client(transport=_FailsOnInjection()) as client:
        chat = ChatInferScale(memory=memory, user_id="ann", max_retries=0, http_client=client)
        for message in (chat.invoke(ask(marker("dog"))), list(chat.stream(ask(marker("dog"))))[-2]):
            report = message.response_metadata["inferscale"]
            assert report["status"] == "text"
            assert "injection failed" in report["reason"]
            assert len(report["fact_ids"]) == 1


def test_other_failures_of_the_server_are_its_clients(memory, marker, server):
    chat = ChatInferScale(memory=memory, user_id="ann", max_retries=0)
    chat.invoke("hello")
    server.faults.status = 401
    with pytest.raises(openai.AuthenticationError):
        chat.invoke(ask(marker("dog")))


def test_tokens_are_counted_with_the_models_own_tokenizer(chat):
    assert chat.get_token_ids("ab") == list(b"ab")
    assert chat.get_num_tokens("abc") == 3
    assert chat.get_num_tokens_from_messages([HumanMessage("abc")]) > 3


# -- answer cache --------------------------------------------------------------------------------


def test_users_do_not_share_cached_answers(shared, cache):
    def questions() -> int:
        return len(cache._cache)

    for user in ("ann", "bob", "ann"):
        shared.invoke("hello", user_id=user)
    assert questions() == 2
    for user in ("ann", "bob", "ann"):
        shared.invoke("hello", config={"configurable": {"user_id": user}})
    assert questions() == 4
    RunnableLambda(lambda x: shared.invoke(x)).invoke(
        "hello", config={"configurable": {"user_id": "carl"}}
    )
    assert questions() == 5


def test_constructors_of_different_users_do_not_share_cached_answers(memory, cache):
    for user in ("ann", "bob"):
        ChatInferScale(memory=memory, user_id=user).invoke("hello")
    assert len(cache._cache) == 2


def test_a_changed_fact_is_not_answered_from_the_cache(chat, memory, marker, cache):
    chat.invoke(ask(marker("dog")))
    fact = next(f for f in memory.get_all(user_id="ann") if "dog" in f.text)
    memory.update(fact.id, text="My dog is called Salt", user_id="ann")
    message = chat.invoke(ask(marker("dog")))
    assert len(cache._cache) == 2
    assert facts(message) == [fact.id]


def test_handles_beside_the_text_are_part_of_the_key(chat, marker, cache):
    for word in ("dog", "peanuts"):
        chat.invoke("hello", inferscale={"handles": [marker(word)]})
    assert len(cache._cache) == 2


def test_it_is_not_serialised_with_its_memory(chat):
    assert chat.is_lc_serializable() is False
    assert "memory" not in chat.model_dump()
    assert chat._get_ls_params()["ls_provider"] == "inferscale"
