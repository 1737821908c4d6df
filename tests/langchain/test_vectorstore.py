"""``InferScaleVectorStore`` on a fake server."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from inferscale_sdk import ConfigurationError
from langchain_inferscale import ChatInferScale, InferScaleVectorStore

DOCUMENTS = [
    Document(page_content="Tea is picked in spring", metadata={"topic": "tea", "page": 1}, id="a"),
    Document(page_content="Coffee grows on hills", metadata={"topic": "coffee", "page": 2}, id="b"),
    Document(page_content="Rivers run to the sea", metadata={"topic": "water", "page": 3}, id="c"),
]


@pytest.fixture
def store(make_memory):
    store = InferScaleVectorStore(make_memory(), user_id="docs")
    store.add_documents(DOCUMENTS)
    return store


def test_searching_gives_documents_back_as_they_were(store):
    assert store.similarity_search("tea in spring", k=1) == DOCUMENTS[:1]
    assert store.get_by_ids(["c", "nobody", "a"]) == [DOCUMENTS[2], DOCUMENTS[0]]
    (document, score), *_ = store.similarity_search_with_relevance_scores("tea in spring", k=3)
    assert document == DOCUMENTS[0]
    assert 0 < score <= 1


def test_filters(store):
    assert store.similarity_search("hills", k=3, filter={"topic": "tea"}) == DOCUMENTS[:1]
    found = store.similarity_search("hills", k=3, filter={"page": {"gte": 2}})
    assert {document.id for document in found} == {"b", "c"}


def test_its_retriever_gives_handles_that_are_injected(store):
    store.memory.wait_encoded(10)
    retriever = store.as_retriever(search_kwargs={"k": 1, "filter": {"topic": "tea"}})
    (document,) = retriever.invoke("anything about leaves")
    assert document.page_content == document.metadata["inferscale"]
    chat = ChatInferScale(memory=store.memory, user_id="docs")
    for _ in range(2):
        message = chat.invoke([("system", document.page_content), ("user", "When?")])
    assert message.response_metadata["inferscale"]["status"] == "injected"


def test_kv_is_encoded_once(store, server):
    assert store.memory.wait_encoded(10)
    encoded = len(server.operations("encode"))
    store.add_documents(DOCUMENTS)
    assert store.memory.wait_encoded(10)
    assert len(server.operations("encode")) == encoded
    assert len(store.similarity_search("tea", k=10)) == 3


def test_collections_of_one_memory_are_apart(store):
    other = InferScaleVectorStore(store.memory, collection="other", user_id="docs")
    other.add_texts(["Tea is traded in autumn"])
    assert [d.page_content for d in other.similarity_search("tea")] == ["Tea is traded in autumn"]
    assert len(store.similarity_search("tea", k=10)) == 3
    other.delete()
    assert other.similarity_search("tea") == []
    assert len(store.similarity_search("tea", k=10)) == 3


def test_users_are_apart(store):
    other = InferScaleVectorStore(store.memory, user_id="else")
    assert other.similarity_search("tea") == []
    assert other.get_by_ids(["a"]) == []


def test_it_can_be_made_as_other_vector_stores_are(tmp_path, server):
    store = InferScaleVectorStore.from_texts(
        ["one", "two"],
        DeterministicFakeEmbedding(size=8),
        [{"n": 1}, {"n": 2}],
        ids=["1", "2"],
        base_url=server.base_url,
        path=tmp_path / "made",
    )
    with store.memory, store.memory.engine:
        assert store.similarity_search("one", k=1, filter={"n": 1})[0].id == "1"


def test_mistakes_are_named(store):
    with pytest.raises(ValueError, match="1 ids"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(ValueError, match="mmr"):
        store.as_retriever(search_type="mmr")
    with pytest.raises(ConfigurationError):
        store.add_texts([" "])


async def test_async(store):
    await store.aadd_texts(["Milk comes from cows"], ids=["m"])
    assert (await store.asimilarity_search("milk cows", k=1))[0].id == "m"
    await store.adelete(["m"])
    assert await store.aget_by_ids(["m"]) == []
