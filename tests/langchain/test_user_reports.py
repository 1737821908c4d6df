"""What users of LangChain, LangGraph and Mem0 reported, each as a test named after the report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from langchain_inferscale import (
    ChatInferScale,
    InferScaleMemory,
    InferScaleMemoryMiddleware,
    InferScaleRetriever,
    InferScaleStore,
    as_handles,
    as_text,
    create_search_memory_tool,
)

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")


def test_mem0_3218_user_id_plus_agent_id_finds_what_was_said(memory):
    """A search that names user and agent found nothing."""
    memory.add("I prefer short answers", user_id="ann", agent_id="tutor")
    both = InferScaleRetriever(memory=memory, user_id="ann", agent_id="tutor", mode="text")
    assert [d.page_content for d in both.invoke("answers")] == ["I prefer short answers"]
    user = InferScaleRetriever(memory=memory, user_id="ann", mode="text")
    assert "I prefer short answers" in [d.page_content for d in user.invoke("answers")]
    other = InferScaleRetriever(memory=memory, user_id="ann", agent_id="coach")
    assert other.invoke("answers") == []


def test_mem0_1805_results_are_the_users_own(memory):
    """Results ignored the user id."""
    retriever = InferScaleRetriever(memory=memory, k=50, mode="text")
    mine = {d.page_content for d in retriever.invoke("locker code 4711", user_id="ann")}
    assert mine == {fact.text for fact in memory.get_all(user_id="ann")}


def test_langchain_38627_an_ensemble_keeps_metadata_apart(memory):
    """Documents of equal content were merged, and one's metadata overwritten."""
    memory.add("Tea is ready", user_id="ann", metadata={"room": "kitchen"})
    memory.add("Tea is ready", user_id="ann", metadata={"room": "garden"})
    parts = [
        InferScaleRetriever(memory=memory, user_id="ann", filters={"room": room})
        for room in ("kitchen", "garden")
    ]
    found = EnsembleRetriever(retrievers=parts, weights=[0.5, 0.5]).invoke("tea")
    assert {d.metadata["room"] for d in found} == {"kitchen", "garden"}
    assert len({d.page_content for d in found}) == 2


def test_langchain_19142_a_reranker_that_drops_ids_keeps_the_handle(memory, prompts):
    """Rerankers returned documents without what identified them."""

    class Reranker(BaseDocumentCompressor):
        def compress_documents(self, documents, query, callbacks=None):
            # As rerankers do: new documents, with text and metadata and no id.
            return [
                Document(page_content=d.page_content, metadata={**d.metadata, "relevance": 1.0})
                for d in documents
                if "Pepper" in d.page_content
            ]

    base = InferScaleRetriever(memory=memory, user_id="ann", mode="text")
    compressing = ContextualCompressionRetriever(base_compressor=Reranker(), base_retriever=base)
    handles = as_text(as_handles(compressing.invoke("who is Pepper?")))
    message = ChatInferScale(memory=memory, user_id="ann").invoke(
        [("system", handles), ("user", "who?")]
    )
    assert len(message.response_metadata["inferscale"]["fact_ids"]) == 1
    assert "Pepper" in prompts()[-1]


@pytest.mark.parametrize("report", ["langchain 5630", "langchain 9394"])
def test_langchain_5630_9394_several_output_keys_are_no_error(memory, report):
    """``One output key expected, got dict_keys([...])``."""
    outputs = {
        "langchain 5630": {"answer": "In Lisbon", "source_documents": [], "generated_question": ""},
        "langchain 9394": {"output": "In Lisbon", "intermediate_steps": [("tool", "result")]},
    }[report]
    recall = InferScaleMemory(memory=memory, user_id="ann")
    recall.save_context({"question": "Where do I live?"}, outputs)
    assert memory.get_all(user_id="ann")[-1].text == "In Lisbon"


def test_langgraph_1084_a_lost_artifact_loses_no_handle(memory, prompts, script):
    """Tool artifacts did not survive being saved; the handle is in the text as well."""
    agent = create_agent(
        ChatInferScale(memory=memory, user_id="ann"),
        tools=[create_search_memory_tool(memory, user_id="ann", k=1)],
        middleware=[script("search_memory", query="Pepper")],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    messages = agent.invoke({"messages": [HumanMessage("Who is Pepper?")]}, config)["messages"]
    stripped = [
        m.model_copy(update={"artifact": None}) if m.type == "tool" else m for m in messages
    ]
    chat = ChatInferScale(memory=memory, user_id="ann")
    chat.invoke([*stripped, HumanMessage("Say it again")])
    assert "Pepper and hates rain" in prompts()[-1]


class _SaysMore(BaseHTTPRequestHandler):
    """A vLLM server that reasons, and says why it stopped."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        self._send({"data": [{"id": "m", "root": "m", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "stop_reason": 151645}
        head = {"id": "x", "model": "m", "created": 0, "object": "chat.completion"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "yes", "reasoning": "because"}
            extra = {"prompt_logprobs": None, "ec_transfer_params": {"a": 1}}
            self._send(
                {**head, **extra, "choices": [{**choice, "message": message}], "usage": usage}
            )
            return
        deltas = [{"role": "assistant", "content": ""}, {"reasoning": "be"}, {"reasoning": "cause"}]
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        chunks.append({"choices": [{**choice, "delta": {"content": "yes"}}]})
        chunks.append({"choices": [], "usage": usage})
        text = (
            "".join(f"data: {json.dumps({**head, **c})}\n\n" for c in chunks) + "data: [DONE]\n\n"
        )
        self._send_raw(text.encode(), "text/event-stream")

    def _send(self, value: Any) -> None:
        self._send_raw(json.dumps(value).encode(), "application/json")

    def _send_raw(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def talkative() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SaysMore) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def reasoning(talkative, tmp_path) -> Iterator[ChatInferScale]:
    from inferscale_sdk.engines.vllm import VLLMEngine
    from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

    engine = VLLMEngine(talkative, tokenizer=FakeTokenizer())
    with (
        Memory(
            engine, live_facts=0, path=tmp_path, embedder=FakeEmbedder(), background=False
        ) as memory,
        engine,
    ):
        yield ChatInferScale(memory=memory)


def test_langchain_35059_36809_vllms_own_fields_are_kept(reasoning):
    """``reasoning`` and further fields of vLLM's responses were dropped."""
    message = reasoning.invoke("why?")
    assert message.additional_kwargs["reasoning_content"] == "because"
    assert message.response_metadata["stop_reason"] == 151645
    assert message.response_metadata["ec_transfer_params"] == {"a": 1}
    assert message.content_blocks[0] == {"type": "reasoning", "reasoning": "because"}


def test_langchain_35059_36809_in_streams_as_well(reasoning):
    total = None
    for chunk in reasoning.stream("why?"):
        total = chunk if total is None else total + chunk
    assert total.additional_kwargs["reasoning_content"] == "because"
    assert total.response_metadata["stop_reason"] == 151645
    assert total.content == "yes"


def test_langgraph_5878_usage_is_there_when_streaming(memory):
    """Messages streamed out of a graph came without usage."""
    chat = ChatInferScale(memory=memory, user_id="ann")

    def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("call", call)
    graph = graph.add_edge(START, "call").add_edge("call", END).compile()
    question = {"messages": [HumanMessage("hi")]}
    counted = [
        chunk.usage_metadata
        for chunk, _ in graph.stream(question, stream_mode="messages")
        if chunk.usage_metadata
    ]
    assert len(counted) == 1
    assert counted[0]["output_tokens"] == 3
    assert counted[0]["input_tokens"] > 0


def test_langgraph_7695_6970_checkpoints_hold_plain_values_only(memory, monkeypatch):
    """Own types in a checkpoint could not be read back under strict msgpack."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    agent = create_agent(
        ChatInferScale(memory=memory, user_id="ann"),
        tools=[],
        middleware=[InferScaleMemoryMiddleware(memory, user_id="ann")],
        checkpointer=InMemorySaver(serde=strict),
    )
    config = {"configurable": {"thread_id": "1"}}
    said = agent.invoke({"messages": [HumanMessage("Who is Pepper?")]}, config)["messages"][-1]
    kept = agent.get_state(config).values["messages"][-1]
    assert kept == said
    assert kept.response_metadata["inferscale"]["handles_honoured"] > 0
    assert strict.loads_typed(strict.dumps_typed(kept.response_metadata)) == kept.response_metadata


def test_cve_2026_71433_langgraphjs_2721_a_prefix_never_crosses_a_label(memory):
    """A namespace prefix was compared as text: ``users/al`` found ``users/alice``."""
    store = InferScaleStore(memory, user_id="ann")
    store.put(("users", "alice"), "k", {"text": "secret of alice"})
    store.put(("users", "al"), "k", {"text": "note of al"})
    assert [i.namespace for i in store.search(("users", "al"))] == [("users", "al")]
    assert [i.namespace for i in store.search(("users", "al"), query="secret")] == [("users", "al")]
    assert store.search(("user",)) == []
    assert store.list_namespaces(prefix=("users", "ali")) == []


def test_mem0_1487_3097_5850_adding_does_not_slow_down_turns(make_memory):
    """Adding called a model, and took longer the more was stored."""
    memory = make_memory()
    recall = InferScaleMemory(memory=memory, user_id="ann")

    def turns(n: int) -> float:
        started = time.perf_counter()
        for i in range(n):
            recall.save_context({"input": f"message {i}"}, {"response": f"answer {i}"})
        return time.perf_counter() - started

    turns(20)
    early = turns(100)
    memory.add([f"filler statement number {i}" for i in range(3000)], user_id="ann")
    late = turns(100)
    assert late < 5 * early + 0.5
    assert late / 100 < 0.1
