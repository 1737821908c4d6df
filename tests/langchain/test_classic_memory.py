"""``InferScaleMemory`` in classic chains and in LCEL, on a fake server."""

from __future__ import annotations

import warnings

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnablePassthrough

from langchain_inferscale import ChatInferScale, InferScaleMemory

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic.base_memory import BaseMemory
    from langchain_classic.chains import ConversationChain, LLMChain
    from langchain_classic.memory import CombinedMemory, ConversationBufferMemory

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")


@pytest.fixture
def chat(memory):
    return ChatInferScale(memory=memory, user_id="ann")


@pytest.fixture
def recall(memory):
    return InferScaleMemory(memory=memory, user_id="ann", top_k=2)


def test_it_is_a_classic_memory(recall):
    assert isinstance(recall, BaseMemory)
    assert recall.memory_variables == ["history"]


def test_it_drops_into_a_conversation_chain(chat, recall, memory, prompts):
    chain = ConversationChain(llm=chat, memory=recall)
    assert chain.invoke({"input": "Who is Pepper?"})["response"] == "one two three"
    assert "Pepper and hates rain" in prompts()[-1]
    assert "[[ifs:" not in prompts()[-1]
    texts = [fact.text for fact in memory.get_all(user_id="ann")]
    assert texts[-2:] == ["Who is Pepper?", "one two three"]
    chain.invoke({"input": "And then?"})
    assert "Human: Who is Pepper?\nAI: one two three" in prompts()[-1]


async def test_async_in_a_conversation_chain(chat, recall, memory, prompts):
    chain = ConversationChain(llm=chat, memory=recall)
    await chain.ainvoke({"input": "Who is Pepper?"})
    assert "Pepper and hates rain" in prompts()[-1]
    assert memory.count(user_id="ann") == 6


def test_recent_turns_are_not_recalled_as_well(recall):
    recall.save_context({"input": "My cat is Tom"}, {"response": "Nice"})
    history = recall.load_memory_variables({"input": "My cat is Tom"})["history"]
    assert history.count("[[ifs:") == 2
    assert history.endswith("Human: My cat is Tom\nAI: Nice")


def test_only_recent_turns_stand_word_for_word(recall):
    for i in range(5):
        recall.save_context({"input": f"message {i}"}, {"response": f"answer {i}"})
    history = recall.load_memory_variables({"input": "?"})["history"]
    assert "message 4" in history
    assert "message 1" not in history


def test_messages(memory):
    recall = InferScaleMemory(memory=memory, user_id="ann", return_messages=True, top_k=1)
    recall.save_context({"input": "hi"}, {"response": AIMessage("hello")})
    first, *rest = recall.load_memory_variables({"input": "Pepper"})["history"]
    assert isinstance(first, SystemMessage)
    assert first.text.startswith("[[ifs:")
    assert rest == [HumanMessage("hi"), AIMessage("hello")]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"input": "x"}, {"response": "y"}),
        ({"question": "x", "chat_history": []}, {"answer": "y", "source_documents": []}),
        ({"query": "x", "k": 3}, {"result": "y", "intermediate_steps": []}),
        ({"input": "x", "stop": ["!"]}, {"output": "y", "cost": 1}),
        ({"whatever": "x"}, {"whatever": "y"}),
        ({"input": [HumanMessage("a"), HumanMessage("x")]}, {"response": AIMessage("y")}),
    ],
)
def test_the_turn_is_found_among_several_keys(recall, memory, inputs, outputs):
    recall.save_context(inputs, outputs)
    assert [f.text for f in memory.get_all(user_id="ann")][-2:] == ["x", "y"]


def test_keys_may_be_named(memory):
    recall = InferScaleMemory(memory=memory, user_id="ann", input_key="b", output_key="d")
    recall.save_context({"a": "1", "b": "2"}, {"c": "3", "d": "4"})
    assert [f.text for f in memory.get_all(user_id="ann")][-2:] == ["2", "4"]
    with pytest.raises(ValueError, match="output_key='d'"):
        recall.save_context({"b": "2"}, {"c": "3"})


def test_what_cannot_be_told_is_an_error_that_says_how(recall):
    with pytest.raises(ValueError, match="output_key="):
        recall.save_context({"input": "x"}, {"left": "a", "right": "b"})


def test_clear_forgets_this_user_only(recall, memory):
    recall.save_context({"input": "x"}, {"response": "y"})
    recall.clear()
    assert memory.count(user_id="ann") == 0
    assert memory.count(user_id="bob") == 2
    assert recall.load_memory_variables({"input": "x"}) == {"history": ""}


def test_with_other_memories_in_one_chain(chat, memory, prompts):
    both = CombinedMemory(
        memories=[
            ConversationBufferMemory(memory_key="lines", input_key="input"),
            InferScaleMemory(memory=memory, user_id="ann", memory_key="known", input_key="input"),
        ]
    )
    prompt = ChatPromptTemplate.from_template("{known}\n{lines}\n{input}")
    LLMChain(llm=chat, prompt=prompt, memory=both).invoke({"input": "Who is Pepper?"})
    assert "Pepper and hates rain" in prompts()[-1]


@pytest.mark.parametrize("return_messages", [True, False])
def test_in_lcel_one_object_serves_many_users(memory, prompts, return_messages):
    recall = InferScaleMemory(memory=memory, return_messages=return_messages)
    history = MessagesPlaceholder("history") if return_messages else ("system", "{history}")
    chain = (
        RunnablePassthrough.assign(history=lambda x: recall.load_memory_variables(x)["history"])
        | ChatPromptTemplate.from_messages([history, ("user", "{input}")])
        | ChatInferScale(memory=memory)
        | StrOutputParser()
    )
    for user, has, lacks in (("ann", "Lisbon", "Oslo"), ("bob", "Oslo", "Lisbon")):
        chain.invoke({"input": "I live in?"}, config={"configurable": {"user_id": user}})
        assert has in prompts()[-1]
        assert lacks not in prompts()[-1]


def test_recent_turns_of_users_are_apart(memory):
    from langchain_core.runnables import RunnableLambda

    recall = InferScaleMemory(memory=memory)
    save = RunnableLambda(lambda x: recall.save_context({"input": x}, {"response": "ok"}))
    load = RunnableLambda(lambda x: recall.load_memory_variables({"input": x})["history"])
    save.invoke("secret of ann", config={"configurable": {"user_id": "ann"}})
    assert "secret" in load.invoke("?", config={"configurable": {"user_id": "ann"}})
    assert "secret" not in load.invoke("?", config={"configurable": {"user_id": "bob"}})
