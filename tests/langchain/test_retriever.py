"""``InferScaleRetriever`` among other retrievers and compressors, on a fake server."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from inferscale_sdk import ConfigurationError, NamespaceError
from langchain_inferscale import (
    ChatInferScale,
    InferScaleLLM,
    InferScaleRetriever,
    as_handles,
    as_text,
)

MARKER = re.compile(r"\[\[ifs:[0-9a-z]+\]\]")


@pytest.fixture
def retriever(memory):
    return InferScaleRetriever(memory=memory, user_id="ann", k=3)


def test_documents_are_handles(retriever):
    found = retriever.invoke("my dog Pepper")
    assert len(found) == 3
    for document in found:
        assert MARKER.fullmatch(document.page_content)
        assert document.id == document.metadata["inferscale"] == document.page_content
        assert document.metadata["fact_id"] in document.page_content
        assert not any("Pepper" in str(value) for value in document.metadata.values())


async def test_half_a_character_is_no_question(retriever, memory):
    half = "half a \ud83d character"
    completion = InferScaleLLM(memory=memory, user_id="ann")
    for ask in (retriever, completion):
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
            ask.invoke(half)
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
            await ask.ainvoke(half)
    with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
        list(completion.stream(half))


def test_text_is_for_rerankers(retriever):
    found = retriever.invoke("my dog Pepper", mode="text")
    assert "Pepper" in found[0].page_content
    assert MARKER.fullmatch(found[0].metadata["inferscale"])
    assert as_handles(found) == [
        Document(page_content=d.metadata["inferscale"], metadata=d.metadata, id=d.id) for d in found
    ]
    other = Document(page_content="no fact")
    assert as_handles([other]) == [other]


def test_filters_and_k(memory):
    memory.add("I like green tea", user_id="ann", metadata={"topic": "food"})
    retriever = InferScaleRetriever(memory=memory, user_id="ann", filters={"topic": "food"})
    assert [d.metadata["topic"] for d in retriever.invoke("tea")] == ["food"]
    assert len(retriever.invoke("tea", filters={}, k=2)) == 2


async def test_async(retriever):
    assert await retriever.ainvoke("dog", k=1) == retriever.invoke("dog", k=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.invoke("live", user_id="bob"),
        lambda r: r.invoke("live", config={"configurable": {"user_id": "bob"}}),
        lambda r: r.with_config(configurable={"user_id": "bob"}).invoke("live"),
        lambda r: (RunnablePassthrough() | r).invoke(
            "live", config={"configurable": {"user_id": "bob"}}
        ),
        lambda r: r.batch(["live"], config={"configurable": {"user_id": "bob"}})[0],
    ],
)
def test_the_user_may_be_named_in_the_call_or_its_configuration(memory, call):
    found = call(InferScaleRetriever(memory=memory, mode="text"))
    assert {d.page_content for d in found} == {"My locker code is 4711", "I live in Oslo"}


def test_nobody_is_not_everybody(memory):
    with pytest.raises(NamespaceError, match="user_id"):
        InferScaleRetriever(memory=memory).invoke("live")
    with pytest.raises(NamespaceError, match="in another"):
        InferScaleRetriever(memory=memory, user_id="ann").invoke("live", user_id="bob")


class _Other(BaseRetriever):
    """Another retriever, whose documents are text."""

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(page_content="Pepper plants need sun", metadata={"source": "web"})]


def test_ensembles_keep_every_handle(retriever):
    ensemble = EnsembleRetriever(retrievers=[retriever, _Other()], weights=[0.5, 0.5])
    found = ensemble.invoke("Pepper")
    assert len(found) == 4
    assert sum(bool(MARKER.fullmatch(d.page_content)) for d in found) == 3


class _Reranker(BaseDocumentCompressor):
    """Sorts by the words that question and text share."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks=None
    ) -> Sequence[Document]:
        def shared(document: Document) -> int:
            return len(set(query.split()) & set(document.page_content.split()))

        return sorted(documents, key=shared, reverse=True)[:1]


def test_a_reranker_reads_text_and_the_chain_carries_handles(memory, prompts):
    texts = InferScaleRetriever(memory=memory, user_id="ann", mode="text")
    compressing = ContextualCompressionRetriever(base_compressor=_Reranker(), base_retriever=texts)
    chain = (
        {"context": compressing | as_handles | as_text, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_messages([("system", "{context}"), ("user", "{question}")])
        | ChatInferScale(memory=memory, user_id="ann")
    )
    message = chain.invoke("called Pepper and")
    assert len(message.response_metadata["inferscale"]["fact_ids"]) == 1
    assert "Pepper and hates rain" in prompts()[-1]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("Use {context} now", "f-string"),
        ("Use {{context}} now", "mustache"),
        ("Use {{{context}}} now", "mustache"),
        ("Use {{ context }} now", "jinja2"),
        ("Use {{ context | e }} now", "jinja2"),
    ],
)
def test_handles_survive_every_template(retriever, template, form):
    text = as_text(retriever.invoke("dog"))
    prompt = PromptTemplate.from_template(template, template_format=form)
    assert MARKER.findall(prompt.format(context=text)) == MARKER.findall(text)
