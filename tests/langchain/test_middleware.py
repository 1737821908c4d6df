"""``InferScaleMemoryMiddleware`` and the memory tools in agents, on a fake server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from inferscale_sdk import NamespaceError
from langchain_inferscale import (
    ChatInferScale,
    InferScaleMemoryMiddleware,
    InferScaleRetriever,
    create_forget_tool,
    create_memory_tools,
    create_remember_tool,
    create_search_memory_tool,
)


@dataclass
class Context:
    user_id: str


@pytest.fixture
def chat(memory):
    return ChatInferScale(memory=memory)


@pytest.fixture
def agent(chat, memory):
    return create_agent(
        chat,
        tools=[],
        middleware=[InferScaleMemoryMiddleware(memory, top_k=2)],
        context_schema=Context,
        checkpointer=InMemorySaver(),
    )


def say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


ANN = {"configurable": {"thread_id": "t1", "user_id": "ann"}}


def test_it_recalls_attaches_and_saves(agent, memory, prompts):
    state = agent.invoke(say("Who is Pepper?"), ANN)
    answer = state["messages"][-1]
    assert answer.response_metadata["inferscale"]["handles_honoured"] == 2
    assert "Pepper and hates rain" in prompts()[-1]
    texts = [fact.text for fact in memory.get_all(user_id="ann")]
    assert texts[-2:] == ["Who is Pepper?", "one two three"]


def test_nothing_of_it_is_in_the_state(agent):
    agent.invoke(say("Who is Pepper?"), ANN)
    assert "[[ifs:" not in repr(agent.get_state(ANN).values)


async def test_async(agent, memory, prompts):
    await agent.ainvoke(say("Who is Pepper?"), ANN)
    assert "Pepper and hates rain" in prompts()[-1]
    assert memory.count(user_id="ann") == 6


@pytest.mark.parametrize(
    "options",
    [
        {"context": Context("bob")},
        {"config": {"configurable": {"user_id": "bob"}}},
        {"config": {"configurable": {"langgraph_user_id": "bob"}}},
    ],
)
def test_the_user_is_named_by_context_or_configuration(agent, prompts, options):
    config = options.pop("config", {"configurable": {}})
    config["configurable"]["thread_id"] = "t2"
    agent.invoke(say("What is my locker code?"), config, **options)
    assert "4711" in prompts()[-1]
    assert "Pepper" not in prompts()[-1]


def test_a_context_may_be_a_mapping(chat, memory, prompts):
    agent = create_agent(chat, tools=[], middleware=[InferScaleMemoryMiddleware(memory)])
    agent.invoke(say("What is my locker code?"), context={"user_id": "bob"})
    assert "4711" in prompts()[-1]


def test_users_must_not_contradict_each_other(agent):
    with pytest.raises(NamespaceError, match="in another"):
        agent.invoke(say("hi"), ANN, context=Context("bob"))


def test_without_a_user_it_is_an_error(agent):
    with pytest.raises(NamespaceError, match="user_id"):
        agent.invoke(say("hi"), {"configurable": {"thread_id": "t3"}})


def test_what_stands_in_the_thread_is_not_recalled_again(agent, prompts):
    agent.invoke(say("My cat is called Tom"), ANN)
    agent.invoke(say("Who is called Tom?"), ANN)
    assert prompts()[-1].count("My cat is called Tom") == 1


def test_other_threads_recall_it(agent, prompts):
    agent.invoke(say("My cat is called Tom"), ANN)
    agent.invoke(say("Who is called Tom?"), {"configurable": {"thread_id": "n", "user_id": "ann"}})
    assert "My cat is called Tom" in prompts()[-1]


def test_saving_can_be_left_to_others(chat, memory):
    middleware = InferScaleMemoryMiddleware(memory, user_id="ann", save=False)
    create_agent(chat, tools=[], middleware=[middleware]).invoke(say("hello"))
    assert memory.count(user_id="ann") == 4


def test_other_models_get_text(memory):
    seen: list[Any] = []

    class Spy(GenericFakeChatModel):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.extend(messages)
            return super()._generate(messages, stop, run_manager, **kwargs)

    agent = create_agent(
        Spy(messages=iter([AIMessage("yes")])),
        tools=[],
        system_prompt="Be brief.",
        middleware=[InferScaleMemoryMiddleware(memory, user_id="ann", top_k=1)],
    )
    agent.invoke(say("Pepper"))
    assert seen[0].text.startswith("Be brief.\n\n")
    assert "Pepper and hates rain" in seen[0].text


# -- tools ---------------------------------------------------------------------------------------


def test_a_search_tool_brings_handles_into_the_agents_notes(chat, memory, prompts, script):
    agent = create_agent(
        chat,
        tools=create_memory_tools(memory),
        middleware=[script("search_memory", query="dog Pepper")],
    )
    state = agent.invoke(say("Who is Pepper?"), ANN)
    assert state["messages"][-2].content.startswith("[[ifs:")
    assert state["messages"][-2].artifact[0].metadata["inferscale"]
    assert "Pepper and hates rain" in prompts()[-1]
    assert "[[ifs:" not in prompts()[-1]
    assert "What was found is in your notes." in prompts()[-1]


def test_a_retriever_tool_does_the_same(chat, memory, prompts, script):
    from langchain_core.tools import create_retriever_tool

    tool = create_retriever_tool(InferScaleRetriever(memory=memory, k=1), "look", "Looks it up.")
    agent = create_agent(chat, tools=[tool], middleware=[script("look", query="dog Pepper")])
    agent.invoke(say("Who is Pepper?"), ANN)
    assert "Pepper and hates rain" in prompts()[-1]


@pytest.mark.parametrize("mode", ["handle", "text"])
def test_search(memory, mode):
    tool = create_search_memory_tool(memory, user_id="ann", k=1, mode=mode)
    text = tool.invoke({"query": "Pepper"})
    assert text.startswith("[[ifs:" if mode == "handle" else "My dog")
    assert (
        create_search_memory_tool(memory, user_id="new")
        .invoke({"query": "x"})
        .startswith("Nothing")
    )


async def test_remember_and_forget(memory):
    remember = create_remember_tool(memory)
    forget = create_forget_tool(memory, user_id="ann")
    config = {"configurable": {"user_id": "ann"}}
    assert await remember.ainvoke({"statement": "I like jazz"}, config) == "Remembered."
    assert forget.invoke({"statement": "Bob's locker"}) == "Nothing is remembered about that."
    assert forget.invoke({"statement": "i like jazz "}) == "Forgotten: I like jazz"
    assert memory.count(user_id="ann") == 4
    assert memory.count(user_id="bob") == 2


def test_tools_without_a_user_are_an_error(memory):
    with pytest.raises(NamespaceError, match="user_id"):
        create_remember_tool(memory).invoke({"statement": "x"})
