"""The model by itself, and chat engines."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.llms.inferscale import InferScaleLLM
from paths_scene import AGAIN, ASK, FACTS, MARKS

from inferscale_sdk import InjectionStatus

pytestmark = MARKS


# -- the model itself ----------------------------------------------------------------------


async def test_chat_in_every_way(llm, retriever, seen):
    context = "\n".join(n.get_content("llm") for n in await retriever.aretrieve(ASK))
    messages = [ChatMessage(role="system", content=context), ChatMessage(content=ASK)]
    whole = llm.chat(messages)
    texts = [whole.message.content, (await llm.achat(messages)).message.content]
    *_, last = llm.stream_chat(messages)
    texts.append(last.message.content)
    async for chunk in await llm.astream_chat(messages):
        last = chunk
    texts.append(last.message.content)
    seen.assert_injected([3] * 4)
    assert len(set(texts)) == 1
    assert last.additional_kwargs["inferscale"]["ttft_ms"] > 0
    assert whole.additional_kwargs["completion_tokens"] > 0
    assert whole.raw.inferscale["fact_ids"] == list(seen.reports[0].fact_ids)


async def test_text_completion(memory, user_id, retriever, seen):
    def prompt() -> str:
        handles = "\n".join(n.get_content("llm") for n in retriever.retrieve(ASK))
        return f"{handles}\nMy cat is called"

    llm = InferScaleLLM(
        memory,
        user_id=user_id,
        is_chat_model=False,
        max_tokens=8,
        max_retries=0,
        on_report=seen.reports.append,
    )
    llm.complete(prompt())
    seen.second_pass()
    llm.complete(prompt())
    await llm.acomplete(prompt())
    list(llm.stream_complete(prompt()))
    async for _ in await llm.astream_complete(prompt()):
        pass
    await llm.aclose()
    seen.assert_injected([3] * 4)


async def test_injection_does_not_change_the_prompt(llm, memory, user_id, retriever, seen):
    """The oracle: the same tokens as text. Greedy answers may differ by a rounding, prompts not."""
    handles = "\n".join(n.get_content("llm") for n in retriever.retrieve(ASK))
    messages = [ChatMessage(role="system", content=handles), ChatMessage(content=ASK)]
    llm.chat(messages)
    llm.model_copy(update={"inject": False}).chat(messages)
    injected, text = seen.reports
    assert (injected.status, text.status) == (InjectionStatus.INJECTED, InjectionStatus.TEXT)
    assert injected.prompt_tokens == text.prompt_tokens
    assert injected.fact_ids == text.fact_ids
    assert text.injected_tokens == 0


# -- chat engines --------------------------------------------------------------------------


async def test_simple_chat_engine(llm, make_chat_memory, seen):
    engine = SimpleChatEngine.from_defaults(
        llm=llm, memory=make_chat_memory(), system_prompt="Be brief."
    )
    engine.chat(ASK)
    seen.second_pass()
    engine.chat(AGAIN)
    await engine.achat(AGAIN)
    for _ in engine.stream_chat(AGAIN).response_gen:
        pass
    async for _ in (await engine.astream_chat(AGAIN)).async_response_gen():
        pass
    seen.assert_injected([2] * 4)
    assert all("[[ifs:" not in (m.content or "") for m in engine.chat_history)


async def test_context_chat_engine(llm, retriever, make_chat_memory, seen):
    """Documents and memory together: three chunks and two facts, of which some are the same."""
    engine = ContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=make_chat_memory(), system_prompt="Be brief."
    )
    first = engine.chat(ASK)
    assert first.source_nodes[0].text in FACTS["first"]
    seen.second_pass()
    engine.chat(ASK)
    await engine.achat(ASK)
    for _ in engine.stream_chat(ASK).response_gen:
        pass
    seen.assert_injected([3] * 3)


async def test_condense_plus_context_chat_engine(llm, retriever, make_chat_memory, seen):
    """The memory is in the condensing prompt as well, and injected there, too."""
    engine = CondensePlusContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=make_chat_memory()
    )
    engine.chat(ASK)
    # What memory gives counts as history, so that even the first question is condensed.
    assert len(seen.reports) == 2
    seen.second_pass()
    await engine.achat(AGAIN)
    condensed, answered = seen.facts()
    assert condensed == 2
    assert answered >= 3
    seen.assert_injected([condensed, answered])
