"""``InferScaleMemory`` and its block: what engines and agents get, and what is remembered."""

from __future__ import annotations

import asyncio
import copy
import json
import time

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import InsertMethod
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.workflow import (
    Context,
    JsonPickleSerializer,
    JsonSerializer,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock

from inferscale_sdk import ConfigurationError, Memory, NamespaceError, StoreError
from inferscale_sdk.bridge import has_markers
from inferscale_sdk.testing.fake_embedder import FakeEmbedder


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


@pytest.fixture
def make(memory):
    def make(**options) -> InferScaleMemory:
        return InferScaleMemory.from_defaults(
            memory=memory, **({"user_id": "ann", "session_id": "today", "top_k": 2} | options)
        )

    return make


def resolved(memory, messages, user_id="ann") -> list[str]:
    """What the handles in messages stand for."""
    text = "\n".join(message.content or "" for message in messages)
    return [fact.text for fact in memory.resolve(text, user_id=user_id)]


# -- reading -----------------------------------------------------------------------------------


def test_facts_of_earlier_sessions_are_recalled_for_the_input(make, memory):
    found = make().get(input="Where does Ann live in Lisbon?")
    assert "Ann lives in Lisbon" in resolved(memory, found)
    assert all("Lisbon" not in (message.content or "") for message in found)


def test_without_input_the_last_user_message_counts(make, memory):
    mine = make(top_k=1)
    mine.put_messages([user("Hello"), assistant("Hi!"), user("What is Ann's dog called?")])
    found = mine.get()
    assert resolved(memory, found) == ["Ann's dog is called Pepper"]
    assert [message.role.value for message in found] == ["user", "assistant", "user"]
    assert has_markers([found[-1].content])
    assert found[-1].content.endswith("\nWhat is Ann's dog called?")


def test_a_message_object_may_be_the_input(make, memory):
    assert resolved(memory, make(top_k=1).get(input=user("Ann's dog is called?"))) == [
        "Ann's dog is called Pepper"
    ]


def test_nothing_is_recalled_when_nothing_was_asked(make):
    mine = make()
    mine.put(assistant("Welcome back!"))
    assert [message.content for message in mine.get()] == ["Welcome back!"]


def test_what_was_just_said_is_not_recalled_beside_itself(make, memory):
    mine = make(top_k=3)
    mine.put_messages([user("Ann lives where?"), assistant("In Lisbon, Ann lives."), user("Ann?")])
    assert sorted(resolved(memory, mine.get())) == sorted(
        ["Ann lives in Lisbon", "Ann's dog is called Pepper", "Ann is allergic to peanuts"]
    )


def test_turns_that_fell_out_of_the_window_are_recalled(make, memory):
    mine = make(top_k=1, token_limit=12)
    mine.put_messages([user("My bicycle is a green tandem"), assistant("Nice!")])
    mine.put_messages([user("Other things " * 5), assistant("Fine."), user("My bicycle is?")])
    found = mine.get()
    assert "tandem" not in " ".join(m.content for m in found)
    assert resolved(memory, found) == ["My bicycle is a green tandem"]


def test_messages_given_out_are_copies(make):
    mine = make()
    mine.put(user("What is Ann's dog called?"))
    mine.get()[-1].blocks[0].text = "changed by an agent"
    assert mine.get_all()[-1].content == "What is Ann's dog called?"


def test_as_a_system_message(make, memory):
    mine = make(insert_method="system")
    mine.put(user("What is Ann's dog called?"))
    first, last = mine.get()
    assert first.role == MessageRole.SYSTEM
    assert "Ann's dog is called Pepper" in resolved(memory, [first])
    assert last.content == "What is Ann's dog called?"
    mine.set([ChatMessage(role="system", content="Be brief."), user("Ann's dog?")])
    first, _ = mine.get()
    assert first.content.endswith("Be brief.")


def test_as_text_for_other_models(make):
    mine = make(mode="text", insert_method="system", top_k=1)
    mine.put(user("What is Ann's dog called?"))
    text = mine.get()[0].content
    assert "Ann's dog is called Pepper" in text
    assert not has_markers([text])


def test_a_message_with_a_picture_only_keeps_it(make):
    mine = make()
    mine.chat_store.add_message(
        mine.chat_store_key,
        ChatMessage(role="user", blocks=[ImageBlock(url="http://x.test/a.png")]),
    )
    (found,) = mine.get(input="What is Ann's dog called?")
    assert isinstance(found.blocks[0], TextBlock)
    assert isinstance(found.blocks[1], ImageBlock)


# -- the window --------------------------------------------------------------------------------


def test_short_term_messages_keep_within_the_limit(make):
    mine = make(token_limit=20, tokenizer_fn=str.split)
    for i in range(10):
        mine.put_messages([user(f"question {i} of ten words " * 2), assistant(f"answer {i}")])
    kept = mine.get(input="zzz")
    assert [m.content for m in kept if m.role == MessageRole.ASSISTANT] == ["answer 9"]
    assert kept[-2].role == MessageRole.USER
    assert len(mine.get_all()) == 20


def test_tokens_before_the_history_count(make):
    mine = make(token_limit=10, tokenizer_fn=str.split)
    mine.put_messages([user("one two three"), assistant("four"), user("five six"), assistant("7")])
    plain = [m for m in mine.get(input="zzz") if not has_markers([m.content])]
    assert len(mine.get(initial_token_count=6)) < 4
    assert len(plain) >= 3


def test_a_tool_call_and_its_answer_stay_together(make):
    mine = make(token_limit=8, tokenizer_fn=str.split)
    mine.put_messages(
        [
            user("a b c d e f g h"),
            ChatMessage(role="assistant", content="calling", additional_kwargs={"tool_calls": []}),
            ChatMessage(role="tool", content="r1 r2", additional_kwargs={"tool_call_id": "1"}),
            user("next question"),
        ]
    )
    assert [m.role.value for m in mine.get(input="zzz")][-1:] == ["user"]
    assert all(m.role != MessageRole.TOOL for m in mine.get(input="zzz"))


def test_one_message_longer_than_the_limit_is_kept(make):
    mine = make(token_limit=2, tokenizer_fn=str.split)
    mine.put(user("much longer than two tokens"))
    assert mine.get()[-1].content.endswith("much longer than two tokens")


# -- writing -----------------------------------------------------------------------------------


def test_turns_are_remembered_and_tools_are_not(make, memory):
    mine = make()
    mine.put_messages(
        [
            ChatMessage(role="system", content="Be brief."),
            user("I bought a kayak"),
            ChatMessage(role="assistant", content=""),
            ChatMessage(role="tool", content="42 kayaks in stock"),
            assistant("Enjoy it!"),
        ]
    )
    facts = memory.get_all(user_id="ann", run_id="today")
    assert [(f.speaker, f.text) for f in facts] == [
        ("user", "I bought a kayak"),
        ("assistant", "Enjoy it!"),
    ]
    assert {f.conversation_id for f in facts} == {"today"}


def test_of_an_agents_reasoning_only_the_answer_is_remembered(make, memory):
    mine = make()
    mine.put_messages(
        [
            assistant("Thought: I need a tool.\nAction: search"),
            assistant("Thought: ok\nAnswer: Yes."),
        ]
    )
    assert [f.text for f in memory.get_all(user_id="ann", run_id="today")] == ["Yes."]


def test_handles_in_messages_are_not_remembered(make, memory, marker):
    make().put(user(f"{marker('dog')} is what you said"))
    (fact,) = memory.get_all(user_id="ann", run_id="today")
    assert not has_markers([fact.text])


def test_a_whole_history_handed_in_again_is_stored_once(make, memory):
    history = [user("I bought a kayak"), assistant("Enjoy it!")]
    make().set(history)
    for session in ("today", "tomorrow"):  # a stateless application: a new object every request
        history = [*history, user(f"news of {session}")]
        make(session_id=session, chat_history=history)
    texts = [f.text for f in memory.get_all(user_id="ann") if f.namespace.run_id != "earlier"]
    assert texts == ["I bought a kayak", "Enjoy it!", "news of today", "news of tomorrow"]


def test_reset_drops_the_session_and_keeps_the_facts(make, memory):
    mine = make()
    mine.put(user("I bought a kayak"))
    mine.reset()
    assert mine.get_all() == []
    assert "I bought a kayak" in resolved(memory, mine.get(input="Who bought a kayak?"))


async def test_the_async_twins_do_the_same(make, memory):
    mine = make(top_k=1)
    await mine.aset([user("Hello")])
    await mine.aput(assistant("Hi!"))
    await mine.aput_messages([user("What is Ann's dog called?")])
    assert len(await mine.aget_all()) == 3
    assert resolved(memory, await mine.aget()) == ["Ann's dog is called Pepper"]
    await mine.areset()
    assert await mine.aget_all() == []


async def test_sync_calls_work_in_a_running_event_loop(make, memory):
    """As in a notebook, where ``asyncio.run`` is not possible."""
    mine = make()
    mine.put(user("What is Ann's dog called?"))
    assert "Ann's dog is called Pepper" in resolved(memory, mine.get())
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=mine)
    engine.chat("I bought a kayak")
    assert any(f.text == "I bought a kayak" for f in memory.get_all(user_id="ann"))


# -- whose -------------------------------------------------------------------------------------


def test_users_do_not_meet(make, memory):
    assert resolved(memory, make(user_id="bob").get(input="Where does Ann live?"), "ann") == []


def test_users_with_sessions_of_one_name_do_not_meet_in_a_shared_chat_store(make):
    store = SimpleChatStore()
    ann, bob = (make(user_id=name, chat_store=store, session_id="main") for name in ("ann", "bob"))
    ann.put(user("ann's secret"))
    assert bob.get_all() == []


def test_no_user_where_one_is_needed_is_an_error_not_a_worse_answer(memory):
    with pytest.raises(NamespaceError, match="user_id"):
        InferScaleMemory(memory).get(input="Where?")


def test_a_malformed_user_is_refused_at_once(memory):
    with pytest.raises(NamespaceError, match="empty"):
        InferScaleMemory(memory, user_id=" ")


def test_recall_from_one_session(make, memory):
    assert resolved(memory, make(recall_from="session").get(input="Where does Ann live?")) == []
    there = make(recall_from="session", session_id="earlier")
    assert resolved(memory, there.get(input="Where does Ann live?")) != []


def test_an_object_may_move_on_to_another_session(make, memory):
    mine = make()
    mine.put(user("first"))
    mine.session_id = "tomorrow"
    mine.put(user("second"))
    assert [f.text for f in memory.get_all(user_id="ann", run_id="tomorrow")] == ["second"]


def test_a_failing_recall_does_not_fail_the_chat(make, memory, monkeypatch, caplog):
    def fail(*_, **__):
        raise StoreError("the disk has Ann's address on it")

    monkeypatch.setattr(memory._parts.recaller, "search", fail)
    mine = make()
    mine.put(user("Hello"))
    assert [m.content for m in mine.get()] == ["Hello"]
    assert "recall failed" in caplog.text
    assert "address" not in caplog.text
    with pytest.raises(StoreError):
        make(on_error="raise").get(input="Hello")


# -- serialised form ---------------------------------------------------------------------------


class Keeps(Workflow):
    @step
    async def only(self, ctx: Context, ev: StartEvent) -> StopEvent:
        if ev.get("memory"):
            await ctx.store.set("memory", ev.memory)
        found = await (await ctx.store.get("memory")).aget(input="What is Ann's dog called?")
        return StopEvent(result=found)


@pytest.mark.parametrize("serializer", [JsonSerializer, JsonPickleSerializer])
async def test_it_serialises_with_a_workflow_context(make, memory, serializer):
    flow = Keeps()
    context = Context(flow)
    mine = make(top_k=1)
    mine.put(user("Hello"))
    await flow.run(ctx=context, memory=mine)
    saved = json.loads(json.dumps(context.to_dict(serializer=serializer())))
    assert "Pepper" not in json.dumps(saved)

    restored = Context.from_dict(flow, saved, serializer=serializer())
    found = await flow.run(ctx=restored)
    assert resolved(memory, found) == ["Ann's dog is called Pepper"]
    again = await restored.store.get("memory")
    assert (again.user_id, again.session_id) == ("ann", "today")
    assert [m.content for m in again.get_all()] == ["Hello"]
    assert again.memory is memory


def test_a_restored_memory_of_a_store_that_is_not_open_says_so(make, tmp_path):
    saved = make().to_dict() | {"store": "0" * 16}
    restored = InferScaleMemory.from_dict(saved)
    with Memory(path=tmp_path / "other", embedder=FakeEmbedder(), background=False) as other:
        with pytest.raises(ConfigurationError, match="0000000000000000"):
            restored.bind(other)


def test_bind_takes_up_the_store(make, memory):
    restored = InferScaleMemory.from_dict(make().to_dict())
    restored.bind(memory)
    assert restored.memory is memory


def test_copies_share_the_store(make, memory):
    assert copy.deepcopy(make()).memory is memory


# -- the block ---------------------------------------------------------------------------------


@pytest.fixture
def block(memory) -> InferScaleMemoryBlock:
    return InferScaleMemoryBlock(memory, user_id="ann", top_k=1)


async def test_the_block_recalls_for_the_last_user_message(block, memory):
    (found,) = await block.aget([user("Hi"), assistant("Hello"), user("Ann's dog is called?")])
    assert found.role == MessageRole.USER
    assert resolved(memory, [found]) == ["Ann's dog is called Pepper"]
    assert await block.aget() == []


@pytest.mark.parametrize("insert", list(InsertMethod))
async def test_the_block_in_llama_index_memory(block, memory, insert, make_core_memory):
    chat = make_core_memory(session_id="s1", memory_blocks=[block], insert_method=insert)
    await chat.aput(user("Ann's dog is called?"))
    found = await chat.aget()
    assert resolved(memory, found) == ["Ann's dog is called Pepper"]
    assert found[-1].content == "Ann's dog is called?"


async def test_messages_that_leave_the_queue_are_remembered_under_their_session(
    block, memory, make_core_memory
):
    for session in ("s1", "s2"):
        chat = make_core_memory(
            session_id=session, memory_blocks=[block], token_limit=40, token_flush_size=10
        )
        for i in range(6):
            await chat.aput_messages([user(f"{session} says {i} and more words"), assistant("ok")])
    for session in ("s1", "s2"):
        said = [f.text for f in memory.get_all(user_id="ann", run_id=session) if "says" in f.text]
        assert said
        assert all(text.startswith(session) for text in said)


async def test_the_block_as_text(memory):
    block = InferScaleMemoryBlock(memory, user_id="ann", top_k=1, mode="text")
    (found,) = await block.aget([user("Ann's dog is called?")])
    assert found.role == MessageRole.SYSTEM
    assert "Pepper" in found.content


async def test_a_failing_block_does_not_fail_the_chat(block, memory, monkeypatch):
    monkeypatch.setattr(memory._parts.recaller, "search", lambda *_: 1 / 0)
    assert await block.aget([user("Ann's dog is called?")]) == []


def test_defaults_come_from_the_model(memory, make_llm):
    mine = InferScaleMemory.from_defaults(llm=make_llm(user_id="ann"), user_id="ann")
    assert mine.memory is memory
    assert mine.token_limit == 4096


async def test_adding_stays_fast_however_much_is_remembered(make, memory):
    mine = make()
    await asyncio.to_thread(mine.put_messages, [user(f"note {i}") for i in range(200)])
    started = time.thread_time()
    for i in range(20):
        mine.put(user(f"later note {i}"))
    assert (time.thread_time() - started) / 20 < 0.1
