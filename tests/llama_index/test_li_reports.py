"""What users of LlamaIndex and Mem0 reported, each as a test of the same name."""

from __future__ import annotations

import threading

import pytest
from llama_index.core.agent.workflow import ReActAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.workflow import WorkflowRuntimeError
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock
from llama_index.retrievers.inferscale import InferScaleRetriever

from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

CHAT = "/v1/chat/completions"


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def prompts_of(server) -> list[str]:
    """What the model was given, request by request."""
    transfers = [body["kv_transfer_params"] for body in server.bodies(CHAT)]
    return [FakeTokenizer().decode(t["prompt_token_ids"]) for t in transfers]


def texts(memory, messages, **ids) -> list[str]:
    text = "\n".join(message.content or "" for message in messages)
    return [fact.text for fact in memory.resolve(text, **ids)]


@pytest.mark.parametrize("agent_id", ["tutor", None])
def test_llama_index_20492_and_mem0_3218_user_id_plus_agent_id_finds_nothing(memory, agent_id):
    """What was said to an agent is found with the user's id alone, and with both."""
    InferScaleMemory(memory, user_id="ann", agent_id="tutor").put(user("I am learning Danish"))
    mine = InferScaleMemory(memory, user_id="ann", agent_id=agent_id)
    found = texts(memory, mine.get(input="Who is learning Danish?"), user_id="ann")
    assert "I am learning Danish" in found
    retriever = InferScaleRetriever(memory, user_id="ann", agent_id=agent_id, top_k=1)
    assert retriever.retrieve("learning Danish")[0].text == "I am learning Danish"
    other = InferScaleMemory(memory, user_id="ann", agent_id="cook")
    assert "Danish" not in str(texts(memory, other.get(input="Danish?"), user_id="ann"))


def test_mem0_1805_results_ignore_the_user_id(memory):
    for text in ("My locker code is 1212", "My locker is blue"):
        InferScaleMemory(memory, user_id="eve").put(user(text))
    for name, expected in (("bob", {"Bob's code is 4711"}), ("nobody", set())):
        mine = InferScaleMemory(memory, user_id=name, top_k=20)
        assert set(texts(memory, mine.get(input="locker code"), user_id=name)) == expected
        retriever = InferScaleRetriever(memory, user_id=name)
        assert {n.text for n in retriever.retrieve("locker code")} == expected


async def test_llama_index_pr_19054_and_pr_23180_memory_block_gets_no_query(
    memory, make_core_memory
):
    """With and without an input, and with a message in its place, the block has a query."""
    block = InferScaleMemoryBlock(memory, user_id="ann", top_k=1)
    chat = make_core_memory(session_id="s", memory_blocks=[block])
    pepper = ["Ann's dog is called Pepper"]
    found = await chat.aget(input="Ann's dog is called?")
    assert texts(memory, found, user_id="ann") == pepper
    await chat.aput(user("Ann's dog is called?"))
    for asked in (None, user("Ann's dog is called?")):
        assert texts(memory, await chat.aget(input=asked), user_id="ann") == pepper
    mine = InferScaleMemory(memory, user_id="ann", top_k=1)
    mine.put(user("Ann's dog is called?"))
    assert texts(memory, mine.get(), user_id="ann") == pepper


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:is_running called from within a step")
@pytest.mark.parametrize("system_prompt", [None, "Answer like a pirate."])
async def test_llama_index_20872_react_ignores_the_system_prompt(
    memory, make_llm, server, system_prompt
):
    """Memory reaches the model with and without one, and does not push one out."""
    agent = ReActAgent(
        llm=make_llm(user_id="ann"), tools=[], system_prompt=system_prompt, streaming=False
    )
    mine = InferScaleMemory(memory, user_id="ann", top_k=1, remember_roles=())
    try:
        await agent.run("Ann's dog is called?", memory=mine, max_iterations=1)
    except WorkflowRuntimeError as error:
        assert "Max iterations" in str(error)
    (prompt,) = prompts_of(server)
    assert "Ann's dog is called Pepper" in prompt
    assert (system_prompt or "designed to help") in prompt


def test_llama_index_14310_braces_in_a_template(memory, make_llm, server):
    """Facts with braces reach the model as they are; what a user types fills no template."""
    odd = 'Ann\'s config is {"city": "{city}", "again": "{{x}}"} and {context_str}'
    memory.add(odd, user_id="ann")
    engine = ContextChatEngine.from_defaults(
        retriever=InferScaleRetriever(memory, user_id="ann", top_k=1),
        llm=make_llm(user_id="ann"),
        memory=InferScaleMemory(memory, user_id="ann", top_k=1, remember_roles=()),
    )
    typed = "Ann's config, {context_str} {query_str} {0} {"
    for _ in range(2):
        engine.chat(typed)
    for prompt in prompts_of(server):
        assert odd in prompt
        assert prompt.count('"city"') == 1
    assert typed in prompts_of(server)[0]


@pytest.mark.field_fault(15)
async def test_llama_index_22701_memory_block_pinned_to_the_first_session(memory, make_core_memory):
    """One block serves two sessions: each turn is filed under its own, all are recalled."""
    block = InferScaleMemoryBlock(memory, user_id="ann", top_k=3)
    strict = InferScaleMemoryBlock(
        memory, user_id="ann", top_k=3, recall_from="session", name="strict"
    )
    for session, text in (("s1", "Kayak one is red"), ("s2", "Kayak two is blue")):
        message = user(text)
        await block.aput([message], from_short_term_memory=True, session_id=session)
        assert [f.text for f in memory.get_all(user_id="ann", run_id=session)] == [text]
    for session in ("s1", "s2", "s1"):
        ask = [user("Which kayak is it?")]
        everything = await block.aget(ask, session_id=session)
        assert {"Kayak one is red", "Kayak two is blue"} <= set(
            texts(memory, everything, user_id="ann")
        )
        own = texts(memory, await strict.aget(ask, session_id=session), user_id="ann")
        assert own == (["Kayak one is red"] if session == "s1" else ["Kayak two is blue"])


class WatchedEmbedder(FakeEmbedder):
    def __init__(self):
        super().__init__()
        self.threads = set()

    def embed(self, texts):
        self.threads.add(threading.get_ident())
        return super().embed(texts)


def test_mem0_1487_3097_5850_adding_slows_every_turn(make_memory, tmp_path, server):
    """Adding calls no model, embeds nothing and encodes nothing before it returns."""
    embedder = WatchedEmbedder()
    memory = make_memory(path=tmp_path / "slow", embedder=embedder)
    mine = InferScaleMemory(memory, user_id="ann")
    for i in range(10):
        mine.put_messages(
            [user(f"thing {i}"), ChatMessage(role="assistant", content=f"Noted, thing {i}.")]
        )
    assert threading.get_ident() not in embedder.threads
    assert server.bodies(CHAT) == []
    assert server.operations("encode") == []
    assert memory.count(user_id="ann") == 20
