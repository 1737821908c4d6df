"""``InferScaleStore``: LangGraph's store interface on facts."""

from __future__ import annotations

import time

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from inferscale_sdk import NamespaceError
from langchain_inferscale import ChatInferScale, InferScaleStore

NS = ("memories", "ann")


@pytest.fixture
def store(make_memory):
    return InferScaleStore(make_memory(), user_id="ann")


@pytest.fixture
def shared(make_memory):
    return InferScaleStore(make_memory(), user_label=1)


def test_put_get_change_delete(store):
    store.put(NS, "k", {"text": "I like tea", "n": 1})
    item = store.get(NS, "k")
    assert (item.value, item.key, item.namespace) == ({"text": "I like tea", "n": 1}, "k", NS)
    store.put(NS, "k", {"text": "I like coffee"})
    changed = store.get(NS, "k")
    assert changed.value == {"text": "I like coffee"}
    assert changed.created_at == item.created_at
    assert changed.updated_at > item.updated_at
    store.delete(NS, "k")
    assert store.get(NS, "k") is None
    assert store.get(("memories",), "k") is None


def test_keys_may_repeat_in_other_namespaces(store):
    store.put(("a", "b"), "k", {"text": "one"})
    store.put(("a",), "k", {"text": "two"})
    assert store.get(("a", "b"), "k").value["text"] == "one"
    assert store.get(("a",), "k").value["text"] == "two"


def test_search_by_meaning(store):
    store.put(NS, "1", {"text": "The dog is called Pepper"})
    store.put(NS, "2", {"text": "Rent is due on Monday"})
    found = store.search(NS, query="called Pepper", limit=1)
    assert [item.key for item in found] == ["1"]
    assert found[0].score > 0
    assert [i.key for i in store.search(NS, query="called Pepper", limit=1, offset=1)] == ["2"]


def test_search_by_filter(store):
    other = InMemoryStore()
    for target in (store, other):
        for i in range(6):
            target.put(NS, str(i), {"text": f"note {i}", "n": i, "tag": {"kind": "ab"[i % 2]}})
    for condition in (
        {"n": 3},
        {"n": {"$gte": 2, "$lt": 5}},
        {"n": {"$ne": 1}},
        {"tag": {"kind": "a"}},
        {"tag": {"kind": {"$eq": "b"}}, "n": {"$gt": 1}},
        {"absent": 1},
    ):
        mine, theirs = (
            {item.key for item in s.search(("memories",), filter=condition, limit=10)}
            for s in (store, other)
        )
        assert mine == theirs, condition
    assert len(store.search(NS, query="note", filter={"n": 5}, limit=1)) == 1
    with pytest.raises(ValueError, match=r"\$regex"):
        store.search(NS, filter={"n": {"$regex": "x"}})


def test_unindexed_items_are_not_found_by_meaning(store):
    store.put(NS, "1", {"text": "hidden word"}, index=False)
    store.put(NS, "2", {"title": "found word", "text": "x"}, index=["title"])
    assert [item.key for item in store.search(NS, query="word")] == ["2"]
    assert store.get(NS, "1").value["text"] == "hidden word"


def test_prefixes_match_whole_labels(store):
    store.put(("users", "al"), "1", {"text": "of al"})
    store.put(("users", "alice"), "2", {"text": "of alice"})
    store.put(("users", "al", "notes"), "3", {"text": "deeper of al"})
    for query in (None, "of al"):
        assert {i.key for i in store.search(("users", "al"), query=query)} == {"1", "3"}
    assert store.list_namespaces(prefix=("users", "al")) == [
        ("users", "al"),
        ("users", "al", "notes"),
    ]


def test_listing(store):
    for path in (("a", "b", "c"), ("a", "b", "d"), ("a", "e", "c"), ("f",)):
        store.put(path, "k", {"text": "x"})
    assert store.list_namespaces(prefix=("a", "*"), suffix=("c",)) == [
        ("a", "b", "c"),
        ("a", "e", "c"),
    ]
    assert store.list_namespaces(max_depth=2) == [("a", "b"), ("a", "e"), ("f",)]
    assert store.list_namespaces(limit=1, offset=1) == [("a", "b", "d")]


def test_labels_are_checked_in_batches_as_well(store):
    with pytest.raises(InvalidNamespaceError):
        store.batch([GetOp(("a.b",), "k")])


def test_batches_read_before_they_write(store):
    store.put(NS, "k", {"text": "old"})
    got, _, _, found = store.batch(
        [GetOp(NS, "k"), PutOp(NS, "k", {"text": "new"}), PutOp(NS, "k", {"text": "newest"}),
         SearchOp(NS)]
    )  # fmt: skip
    assert got.value["text"] == found[0].value["text"] == "old"
    assert store.get(NS, "k").value["text"] == "newest"


def test_items_expire(store, monkeypatch):
    store.put(NS, "soon", {"text": "short life"}, ttl=1)
    store.put(NS, "never", {"text": "long life"})
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert store.get(NS, "soon") is None
    assert [i.key for i in store.search(NS)] == ["never"]
    assert [i.key for i in store.search(NS, query="life")] == ["never"]
    assert store.sweep_ttl() == 1
    assert store.memory.count(user_id="ann") == 1


def test_reading_renews_a_life(store, monkeypatch):
    store.put(NS, "k", {"text": "x"}, ttl=1)
    start = time.time()
    monkeypatch.setattr(time, "time", lambda: start + 40)
    assert store.get(NS, "k", refresh_ttl=False) is not None
    assert store.get(NS, "k") is not None
    monkeypatch.setattr(time, "time", lambda: start + 90)
    assert store.get(NS, "k") is not None


def test_users_by_label_never_meet(shared):
    shared.put(("memories", "ann"), "k", {"text": "of ann"})
    shared.put(("memories", "bob"), "k", {"text": "of bob"})
    assert shared.search(("memories", "ann"), query="of")[0].value["text"] == "of ann"
    assert len(shared.search(("memories", "ann"))) == 1
    for prefix in (("memories",), ()):
        with pytest.raises(NamespaceError, match="label 1"):
            shared.search(prefix)
    with pytest.raises(NamespaceError, match="label 1"):
        shared.list_namespaces(prefix=("memories", "*"))
    with pytest.raises(NamespaceError, match="user_label or user_id"):
        InferScaleStore(shared.memory, user_label=1, user_id="ann")


async def test_async(store):
    await store.aput(NS, "k", {"text": "tea"})
    assert (await store.aget(NS, "k")).value == {"text": "tea"}
    assert len(await store.asearch(NS, query="tea")) == 1
    await store.adelete(NS, "k")
    assert await store.alist_namespaces() == []


def test_its_items_are_injected_by_their_handles(store):
    store.put(NS, "k", {"text": "Pepper is my dog"})
    store.memory.wait_encoded(10)
    handles = store.handles(store.search(NS, query="dog"))
    chat = ChatInferScale(memory=store.memory, user_id="ann")
    for _ in range(2):
        message = chat.invoke("Who is Pepper?", inferscale={"handles": handles})
    assert message.response_metadata["inferscale"]["status"] == "injected"


def test_agents_reach_it_as_their_store(store, script):
    @tool
    def note(text: str) -> str:
        """Keep a note."""
        get_store().put(("notes",), "n", {"text": text})
        return "kept"

    agent = create_agent(
        ChatInferScale(memory=store.memory, user_id="ann"),
        tools=[note],
        store=store,
        middleware=[script("note", text="milk")],
    )
    agent.invoke({"messages": [HumanMessage("note milk")]})
    assert store.get(("notes",), "n").value == {"text": "milk"}
