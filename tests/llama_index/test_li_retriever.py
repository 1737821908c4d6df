"""``InferScaleRetriever`` and ingestion: the shape of nodes, and that chunks are stored once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LongContextReorder, SimilarityPostprocessor
from llama_index.core.schema import MetadataMode, NodeRelationship, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import RetrieverTool
from llama_index.retrievers.inferscale import InferScaleIngestion, InferScaleRetriever

from inferscale_sdk import ConfigurationError, NamespaceError
from inferscale_sdk.bridge import has_markers

TEXT = "The ferry to Barreiro leaves at nine. It takes twenty minutes. Dogs travel free of charge."


@pytest.fixture
def retriever(memory) -> InferScaleRetriever:
    return InferScaleRetriever(memory, user_id="ann", top_k=2)


def facts_of(memory, user_id="docs"):
    return [fact.text for fact in memory.get_all(user_id=user_id)]


def cut(text: str) -> list[str]:
    return [part.strip(" .") + "." for part in text.split(". ")]


class Sentences(SentenceSplitter):
    def split_text(self, text: str) -> list[str]:
        return cut(text)

    split_text_metadata_aware = lambda self, text, metadata_str: cut(text)  # noqa: E731


async def test_half_a_character_is_no_question(retriever):
    half = "half a \ud83d character"
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        retriever.retrieve(half)
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        await retriever.aretrieve(half)


# -- nodes -------------------------------------------------------------------------------------


def test_the_model_sees_the_handle_and_people_see_the_text(retriever, memory):
    first = retriever.retrieve("What is Ann's dog called?")[0]
    node = first.node
    assert node.get_content() == node.text == "Ann's dog is called Pepper"
    assert node.get_content(MetadataMode.EMBED) == node.text
    shown = node.get_content(MetadataMode.LLM)
    assert shown == node.metadata["inferscale"]
    (fact,) = memory.resolve(shown, user_id="ann")
    assert fact.text == node.text
    assert node.node_id in shown
    assert 0 < first.score <= 1.0001


def test_as_text_the_handle_is_in_the_metadata_only(memory):
    retriever = InferScaleRetriever(memory, user_id="ann", top_k=1, mode="text")
    node = retriever.retrieve("What is Ann's dog called?")[0].node
    for mode in (MetadataMode.NONE, MetadataMode.EMBED, MetadataMode.LLM):
        assert node.get_content(mode) == "Ann's dog is called Pepper"
    assert has_markers(node.metadata)


def test_a_node_survives_a_docstore_and_json(retriever, tmp_path):
    node = retriever.retrieve("What is Ann's dog called?")[0].node
    store = SimpleDocumentStore()
    store.add_documents([node])
    store.persist(str(tmp_path / "docs.json"))
    again = SimpleDocumentStore.from_persist_path(str(tmp_path / "docs.json"))
    for copy in (again.get_document(node.node_id), TextNode.from_json(node.to_json())):
        assert copy.get_content(MetadataMode.LLM) == node.metadata["inferscale"]
        assert copy.get_content(MetadataMode.EMBED) == node.text


def test_a_changed_fact_is_another_node(retriever, memory):
    before = retriever.retrieve("What is Ann's dog called?")[0].node
    memory.update(before.metadata["fact_id"], text="Ann's dog is called Salt", user_id="ann")
    after = retriever.retrieve("What is Ann's dog called?")[0].node
    assert after.node_id != before.node_id


async def test_the_async_twin_does_the_same(retriever):
    query = "What is Ann's dog called?"
    found = await retriever.aretrieve(query)
    assert [n.node_id for n in found] == [n.node_id for n in retriever.retrieve(query)]


def test_postprocessors_work_on_similarity(retriever):
    query = "Ann's dog is called Pepper"
    found = retriever.retrieve(query)
    kept = SimilarityPostprocessor(similarity_cutoff=0.99).postprocess_nodes(found, query_str=query)
    assert [n.text for n in kept] == [query]
    assert len(LongContextReorder().postprocess_nodes(found, query_str=query)) == 2


def test_a_retriever_tool_gives_handles(retriever, memory):
    tool = RetrieverTool.from_defaults(retriever, name="facts", description="Facts")
    said = tool("What is Ann's dog called?").content
    assert "Pepper" not in said
    assert "Ann's dog is called Pepper" in [f.text for f in memory.resolve(said, user_id="ann")]


def test_users_do_not_meet(retriever):
    bob = retriever.scoped(user_id="bob")
    assert [n.text for n in bob.retrieve("What is the code?")] == ["Bob's code is 4711"]
    assert all("4711" not in n.text for n in retriever.retrieve("What is the code?"))


def test_no_user_where_one_is_needed_is_an_error(memory):
    with pytest.raises(NamespaceError, match="user_id"):
        InferScaleRetriever(memory).retrieve("Where?")


@pytest.mark.parametrize("options", [{"mode": "handles"}, {"top_k": 0}])
def test_bad_options_are_refused(memory, options):
    with pytest.raises(ConfigurationError):
        InferScaleRetriever(memory, **options)


# -- documents ---------------------------------------------------------------------------------


def test_documents_are_stored_once_in_their_order(memory):
    documents = [Document(text=TEXT, id_="ferry", metadata={"file": Path("ferry.txt")})]
    for _ in range(2):
        retriever = InferScaleRetriever.from_documents(
            documents, memory, transformations=[Sentences()], user_id="docs", top_k=1
        )
    facts = memory.get_all(user_id="docs")
    assert [f.text for f in facts] == cut(TEXT)
    assert [f.conversation_id for f in facts] == ["ferry"] * 3
    assert memory.wait_encoded(10, user_id="docs")
    node = retriever.retrieve("When does the ferry leave?")[0].node
    assert node.text == "The ferry to Barreiro leaves at nine."
    assert node.metadata["file"] == "ferry.txt"
    assert node.relationships[NodeRelationship.SOURCE].node_id == "ferry"
    assert has_markers([node.get_content(MetadataMode.LLM)])


def test_by_default_documents_are_cut_into_small_chunks(memory):
    InferScaleRetriever.from_documents(
        [Document(text=TEXT * 40, id_="long")], memory, user_id="docs"
    )
    assert len(facts_of(memory)) > 3


def test_what_a_document_no_longer_says_is_forgotten(memory):
    retriever = InferScaleRetriever(memory, user_id="docs")
    other = Document(text="Trams run all night.", id_="tram")
    step = [Sentences()]
    retriever.refresh([Document(text=TEXT, id_="ferry"), other], transformations=step)
    kept = {f.text: f.id for f in memory.get_all(user_id="docs")}
    changed = TEXT.replace("nine", "ten")
    retriever.refresh([Document(text=changed, id_="ferry")], transformations=step)
    assert sorted(facts_of(memory)) == sorted([*cut(changed), "Trams run all night."])
    now = {f.text: f.id for f in memory.get_all(user_id="docs")}
    assert now["It takes twenty minutes."] == kept["It takes twenty minutes."]


def test_one_text_in_two_documents_is_two_chunks(memory):
    retriever = InferScaleRetriever(memory, user_id="docs")
    retriever.refresh([Document(text="Same.", id_="a"), Document(text="Same.", id_="b")])
    assert facts_of(memory) == ["Same.", "Same."]
    retriever.refresh([Document(text="Other.", id_="a")])
    assert sorted(facts_of(memory)) == ["Other.", "Same."]


def test_documents_of_an_agent_are_not_those_of_its_user(memory):
    for ids in ({"agent_id": "guide"}, {}):
        InferScaleRetriever(memory, user_id="docs", **ids).refresh([Document(text="A.", id_="d")])
    InferScaleRetriever(memory, user_id="docs").refresh([Document(text="B.", id_="d")])
    texts = [(f.namespace.agent_id, f.text) for f in memory.get_all(user_id="docs")]
    assert sorted(texts, key=str) == [("guide", "A."), (None, "B.")]


async def test_an_ingestion_pipeline_stores_nodes_once(memory):
    retriever = InferScaleRetriever(memory, user_id="docs", top_k=1)
    pipeline = IngestionPipeline(transformations=[Sentences(), retriever.ingestion()])
    documents = [Document(text=TEXT, id_="ferry")]
    nodes = pipeline.run(documents=documents)
    assert [n.text for n in nodes] == cut(TEXT)
    assert all(has_markers([n.get_content(MetadataMode.LLM)]) for n in nodes)
    again = await pipeline.arun(documents=documents)
    fresh = IngestionPipeline(
        transformations=[Sentences(), InferScaleIngestion(memory, user_id="docs")]
    )
    third = fresh.run(documents=documents)
    assert [n.node_id for n in again] == [n.node_id for n in third] == [n.node_id for n in nodes]
    assert facts_of(memory) == cut(TEXT)


def test_the_ingestion_step_is_plain_data_but_for_the_store(memory):
    step = InferScaleIngestion(memory, user_id="docs")
    assert json.loads(step.to_json())["store"] == step.store
    assert memory.store.secret.hex() not in step.to_json()


def test_nodes_without_text_and_with_odd_metadata(memory):
    step = InferScaleIngestion(memory, user_id="docs")
    day = datetime(2026, 1, 2, tzinfo=UTC)
    nodes = step([TextNode(text="  "), TextNode(text="A fact.", metadata={"day": day})])
    assert [n.text for n in nodes] == ["A fact."]
    assert nodes[0].metadata["day"].startswith("2026-01-02")
