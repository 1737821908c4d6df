"""``InferScaleLLM``: one request per prompt, memory before the prompt; on a fake server."""

from __future__ import annotations

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough

from inferscale_sdk import NamespaceError
from langchain_inferscale import InferScaleLLM, InferScaleRetriever, as_text

PATH = "/v1/completions"


@pytest.fixture
def llm(memory):
    return InferScaleLLM(memory=memory, user_id="ann")


def served(server) -> list[dict]:
    """Completion requests that are prompts, not operations of the engine's client."""
    return [body for body in server.bodies(PATH) if body["max_tokens"] == 256]


def test_a_completion_chain(llm, memory, prompts):
    chain = (
        {
            "context": InferScaleRetriever(memory=memory, user_id="ann", k=1) | as_text,
            "q": RunnablePassthrough(),
        }
        | PromptTemplate.from_template("{context}\nQuestion: {q}\nAnswer:")
        | llm
    )
    assert chain.invoke("Who is Pepper?") == "one two three"
    assert "Pepper and hates rain" in prompts()[-1]
    assert prompts()[-1].endswith("Question: Who is Pepper?\nAnswer:")


def test_every_prompt_is_a_request_with_its_own_segments(llm, marker, server):
    prompts = [f"{marker(word)} x" for word in ("dog", "peanuts", "chess")]
    for result in (llm.generate(prompts), llm.generate(prompts)):
        reports = [g[0].generation_info["inferscale"] for g in result.generations]
        assert len({tuple(report["fact_ids"]) for report in reports}) == 3
    assert {report["status"] for report in reports} == {"injected"}
    assert result.llm_output["token_usage"]["completion_tokens"] == 9
    bodies = served(server)
    assert len(bodies) == 6
    assert len({body["cache_salt"] for body in bodies}) == 3
    assert all(isinstance(body["prompt"][0], int) for body in bodies)


async def test_batches_may_be_of_different_users(memory, marker):
    llm = InferScaleLLM(memory=memory)
    prompts = [marker("dog") + " x", marker("4711", "bob") + " x"]
    configs = [{"configurable": {"user_id": user}} for user in ("ann", "bob")]
    assert llm.batch(prompts, configs) == ["one two three"] * 2
    assert await llm.abatch(prompts, configs) == ["one two three"] * 2
    with pytest.raises(NamespaceError):
        llm.batch(prompts)


def test_streams(llm, marker):
    chunks = list(llm.stream(marker("dog") + " x"))
    assert "".join(chunks) == "one two three"


async def test_async(llm, marker):
    assert await llm.ainvoke(marker("dog") + " x") == "one two three"
    assert "".join([c async for c in llm.astream(marker("dog") + " x")]) == "one two three"


def test_without_handles_the_text_goes_as_it_is(llm, server):
    llm.invoke("Once upon <|start|>")
    assert served(server)[-1]["prompt"] == "Once upon <|start|>"


def test_extra_bodies_are_laid_over_one_another(memory, marker, server):
    llm = InferScaleLLM(memory=memory, user_id="ann", extra_body={"top_k": 3})
    llm.invoke(marker("dog") + " x", extra_body={"min_p": 0.1})
    body = served(server)[-1]
    assert (body["top_k"], body["min_p"]) == (3, 0.1)
    assert body["kv_transfer_params"]["inferscale"]["op"] == "inject"


def test_users_do_not_share_cached_answers(memory):
    from langchain_core.caches import InMemoryCache

    cache = InMemoryCache()
    for user in ("ann", "bob"):
        InferScaleLLM(memory=memory, user_id=user, cache=cache).invoke("hello")
    assert len(cache._cache) == 2


@pytest.mark.parametrize(
    "whose",
    [
        lambda user: {"user_id": user},
        lambda user: {"inferscale": {"user_id": user}},
        lambda user: {"config": {"configurable": {"user_id": user}}},
    ],
    ids=["argument", "inferscale", "configurable"],
)
def test_the_answer_cache_keeps_users_of_one_model_apart(memory, marker, server, whose):
    llm = InferScaleLLM(memory=memory, cache=InMemoryCache())
    prompt = f"{marker('dog')} Who?"
    for user in ("ann", "bob", "ann", "bob"):
        llm.invoke(prompt, **whose(user))
    assert len(served(server)) == 2


def test_the_answer_cache_keeps_users_of_generate_apart(memory, marker, server):
    llm = InferScaleLLM(memory=memory, cache=InMemoryCache())
    prompt = f"{marker('dog')} Who?"
    llm.invoke(prompt, user_id="ann")
    llm.generate([prompt], user_id="bob")
    assert len(served(server)) == 2


def test_the_answer_cache_keeps_handles_apart(memory, marker, server):
    llm = InferScaleLLM(memory=memory, cache=InMemoryCache())
    for word in ("dog", "peanuts", "dog"):
        llm.invoke("Who?", inferscale={"user_id": "ann", "handles": [marker(word)]})
    assert len(served(server)) == 2
