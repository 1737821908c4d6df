"""Every way a handle can ride through LangChain, end to end on the real server.

One row for each path of the table in the design's page on frameworks. Each chain is run for
another question first, which teaches the server its preamble; then the server's own counters must
show that the facts were injected, and the recorded requests that neither a marker nor anything of
another user reached the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_classic.chains import ConversationalRetrievalChain, ConversationChain, RetrievalQA
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.retrieval import create_retrieval_chain
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import create_retriever_tool

from inferscale_sdk import Memory
from inferscale_sdk.bench.speed.counters import EXTERNAL_HITS, read_counter, settled_counter
from langchain_inferscale import (
    InferScaleLLM,
    InferScaleMemory,
    InferScaleMemoryMiddleware,
    InferScaleRetriever,
    InferScaleStore,
    InferScaleVectorStore,
    as_handles,
    as_text,
    create_search_memory_tool,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"),
]

WARM_UP, QUESTION = "What can I not eat?", "Who is Pepper?"
RAG = ChatPromptTemplate.from_messages(
    [("system", "Answer from this:\n{context}"), ("user", "{input}")]
)
IDS = {"configurable": {"user_id": "ann"}}


@dataclass
class Kit:
    """What a path is made of."""

    memory: Memory
    make: Callable[..., Any]
    script: Any

    @property
    def chat(self) -> Any:
        return self.make(user_id="ann")

    @property
    def retriever(self) -> InferScaleRetriever:
        return InferScaleRetriever(memory=self.memory, user_id="ann", k=3)

    def handles(self, question: str) -> list[str]:
        return [h.marker for h in self.memory.handles(question, top_k=3, user_id="ann")]


Path = Callable[[Kit, str], Any]
PATHS: dict[str, Path] = {}


def path(function: Path) -> Path:
    PATHS[function.__name__] = function
    return function


# -- marker in the text ----------------------------------------------------------------------------


@path
def lcel(kit: Kit, question: str) -> Any:
    chain = {"context": kit.retriever | as_text, "input": RunnablePassthrough()} | RAG | kit.chat
    return chain.invoke(question)


@path
def lcel_stream(kit: Kit, question: str) -> Any:
    chain = {"context": kit.retriever | as_text, "input": RunnablePassthrough()} | RAG | kit.chat
    return list(chain.stream(question))


@path
def lcel_async(kit: Kit, question: str) -> Any:
    chain = {"context": kit.retriever | as_text, "input": RunnablePassthrough()} | RAG | kit.chat
    return chain.ainvoke(question)


@path
def lcel_with_the_user_in_the_configuration(kit: Kit, question: str) -> Any:
    retriever = InferScaleRetriever(memory=kit.memory, k=3)
    chain = {"context": retriever | as_text, "input": RunnablePassthrough()} | RAG | kit.make()
    return chain.invoke(question, config=IDS)


@path
def stuff_documents_chain(kit: Kit, question: str) -> Any:
    chain = create_stuff_documents_chain(kit.chat, RAG)
    return chain.invoke({"context": kit.retriever.invoke(question), "input": question})


@path
def retrieval_chain(kit: Kit, question: str) -> Any:
    answer = create_stuff_documents_chain(kit.chat, RAG)
    return create_retrieval_chain(kit.retriever, answer).invoke({"input": question})


@path
def retrieval_qa(kit: Kit, question: str) -> Any:
    return RetrievalQA.from_chain_type(kit.chat, retriever=kit.retriever).invoke(question)


@path
def conversational_retrieval_chain(kit: Kit, question: str) -> Any:
    chain = ConversationalRetrievalChain.from_llm(kit.chat, retriever=kit.retriever)
    return chain.invoke({"question": question, "chat_history": [("Hello", "Hi")]})


@path
def string_memory(kit: Kit, question: str) -> Any:
    memory = InferScaleMemory(memory=kit.memory, user_id="ann", top_k=3)
    return ConversationChain(llm=kit.chat, memory=memory).invoke({"input": question})


@path
def ensemble_retriever(kit: Kit, question: str) -> Any:
    other = RunnableLambda(lambda _: [Document(page_content="Pepper is a spice")])
    both = EnsembleRetriever(retrievers=[kit.retriever, other], weights=[0.7, 0.3])
    return ({"context": both | as_text, "input": RunnablePassthrough()} | RAG | kit.chat).invoke(
        question
    )


class Reranker(BaseDocumentCompressor):
    """Puts short texts first, in new documents without ids, as rerankers make them."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        ordered = sorted(documents, key=lambda d: len(d.page_content))
        return [Document(page_content=d.page_content, metadata=d.metadata) for d in ordered]


@path
def contextual_compression(kit: Kit, question: str) -> Any:
    texts = InferScaleRetriever(memory=kit.memory, user_id="ann", k=3, mode="text")
    chosen = ContextualCompressionRetriever(base_compressor=Reranker(), base_retriever=texts)
    context = chosen | as_handles | as_text
    return ({"context": context, "input": RunnablePassthrough()} | RAG | kit.chat).invoke(question)


@path
def vector_store_retriever(kit: Kit, question: str) -> Any:
    store = InferScaleVectorStore(kit.memory, collection="carriers", user_id="ann")
    store.add_texts(["Pepper sleeps in a basket", "Peanuts are in the cake"], ids=["1", "2"])
    kit.memory.wait_encoded(60, user_id="ann")
    context = store.as_retriever() | as_text
    return ({"context": context, "input": RunnablePassthrough()} | RAG | kit.chat).invoke(question)


@path
def text_completion(kit: Kit, question: str) -> Any:
    prompt = PromptTemplate.from_template("{context}\nQuestion: {input}\nAnswer:")
    llm = kit.make(InferScaleLLM, user_id="ann")
    return (
        {"context": kit.retriever | as_text, "input": RunnablePassthrough()} | prompt | llm
    ).invoke(question)


# -- message history -------------------------------------------------------------------------------


@path
def messages_placeholder(kit: Kit, question: str) -> Any:
    memory = InferScaleMemory(memory=kit.memory, user_id="ann", top_k=3, return_messages=True)
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("user", "{input}")])
    recall = RunnableLambda(lambda x: memory.load_memory_variables(x)["history"])
    return (RunnablePassthrough.assign(history=recall) | prompt | kit.chat).invoke(
        {"input": question}
    )


@path
def message_history(kit: Kit, question: str) -> Any:
    history = InMemoryChatMessageHistory()
    history.add_message(SystemMessage(" ".join(kit.handles(question))))
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("user", "{input}")])
    chain = RunnableWithMessageHistory(
        prompt | kit.chat,
        lambda: history,
        input_messages_key="input",
        history_messages_key="history",
        history_factory_config=[],
    )
    return chain.invoke({"input": question})


@path
def additional_kwargs(kit: Kit, question: str) -> Any:
    message = HumanMessage(question, additional_kwargs={"inferscale": kit.handles(question)})
    return kit.chat.invoke([message])


@path
def content_blocks(kit: Kit, question: str) -> Any:
    blocks = [{"type": "text", "text": handle} for handle in kit.handles(question)]
    return kit.chat.invoke([HumanMessage([*blocks, {"type": "text", "text": question}])])


# -- beside the messages ---------------------------------------------------------------------------


@path
def configurable(kit: Kit, question: str) -> Any:
    config = {"configurable": {"user_id": "ann", "inferscale": {"handles": kit.handles(question)}}}
    return kit.make().invoke(question, config=config)


@path
def bound_arguments(kit: Kit, question: str) -> Any:
    model = kit.make().bind(inferscale={"user_id": "ann", "handles": kit.handles(question)})
    return model.invoke(question)


# -- agents ----------------------------------------------------------------------------------------


@path
def agent_with_a_retriever_tool(kit: Kit, question: str) -> Any:
    tool = create_retriever_tool(kit.retriever, "look", "Looks something up.")
    agent = create_agent(kit.chat, tools=[tool], middleware=[kit.script("look", query=question)])
    return agent.invoke({"messages": [HumanMessage(question)]})


@path
def agent_with_a_memory_tool(kit: Kit, question: str) -> Any:
    tool = create_search_memory_tool(kit.memory, k=3)
    script = kit.script("search_memory", query=question)
    agent = create_agent(kit.make(), tools=[tool], middleware=[script])
    return agent.invoke({"messages": [HumanMessage(question)]}, IDS)


@path
def tool_artifact(kit: Kit, question: str) -> Any:
    from langchain_core.tools import StructuredTool

    def look(query: str) -> tuple[str, list[Document]]:
        """Look it up."""
        found = kit.retriever.invoke(query)
        return f"{len(found)} notes were found.", found

    tool = StructuredTool.from_function(look, response_format="content_and_artifact")
    agent = create_agent(kit.chat, tools=[tool], middleware=[kit.script("look", query=question)])
    return agent.invoke({"messages": [HumanMessage(question)]})


@path
def middleware(kit: Kit, question: str) -> Any:
    memory = InferScaleMemoryMiddleware(kit.memory, top_k=3, save=False)
    agent = create_agent(kit.make(), tools=[], middleware=[memory])
    return agent.invoke({"messages": [HumanMessage(question)]}, IDS)


@path
def middleware_async(kit: Kit, question: str) -> Any:
    memory = InferScaleMemoryMiddleware(kit.memory, top_k=3, save=False)
    agent = create_agent(kit.make(), tools=[], middleware=[memory])
    return agent.ainvoke({"messages": [HumanMessage(question)]}, IDS)


@path
def langgraph_store(kit: Kit, question: str) -> Any:
    store = InferScaleStore(kit.memory, user_id="ann")
    store.put(("notes",), "1", {"text": "Pepper was born in May"})
    store.put(("notes",), "2", {"text": "Peanut butter is off the list"})
    kit.memory.wait_encoded(60, user_id="ann")
    handles = store.handles(store.search(("notes",), query=question, limit=3))
    return kit.chat.invoke(question, inferscale={"handles": handles})


# -- the test --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PATHS))
async def test_the_facts_are_injected(name, real_memory, make_chat, wire, script):
    kit = Kit(real_memory, make_chat, script)
    await run(PATHS[name], kit, WARM_UP)
    real_memory.wait_encoded(60)
    wire.clear()
    hits = partial(read_counter, real_memory.engine.base_url, EXTERNAL_HITS)
    before = hits()
    await run(PATHS[name], kit, QUESTION)

    reports = wire.with_memory()
    assert len(reports) == 1, wire.reports
    (report,) = reports
    assert report["status"] == "injected", report
    assert report["injected_tokens"] > 0
    assert report["injected_tokens"] + report["cached_tokens"] > report["memory_tokens"] > 0
    after = settled_counter(hits, at_least=before + report["injected_tokens"])
    assert after - before == report["injected_tokens"]

    assert any("Pepper" in prompt for prompt in wire.prompts())
    for prompt in wire.prompts():
        assert "[[ifs:" not in prompt
        assert "4711" not in prompt
        assert "Oslo" not in prompt


async def run(function: Path, kit: Kit, question: str) -> None:
    """Off the loop, as applications without one do; coroutines on it."""
    result = await asyncio.to_thread(function, kit, question)
    if asyncio.iscoroutine(result):
        await result
