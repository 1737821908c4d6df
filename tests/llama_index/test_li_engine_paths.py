"""Every path through LlamaIndex on the real server: its counters show what was injected.

Each test goes its path twice, with other facts the second time: in the first the server learns the
text that stands before the facts, in the second nothing can come from vLLM's own cache but that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Document, get_response_synthesizer
from llama_index.core.agent.react.types import ObservationReasoningStep
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.postprocessor import LLMRerank, LongContextReorder, SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from llama_index.core.workflow import WorkflowRuntimeError
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock
from llama_index.retrievers.inferscale import InferScaleRetriever

from inferscale_sdk import InjectionReport, InjectionStatus, Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

pytestmark = [
    pytest.mark.engine,
    # llama-index-core 0.14 on pydantic 2.14, in every agent.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step"),
]

FACTS = {
    "first": [
        "My cat is called Biscuit and she is fourteen years old.",
        "I inspect bridges for a living, mostly old steel ones.",
        "I am allergic to walnuts, so I always read the label.",
    ],
    "second": [
        "My other cat is called Crumb and is three years old.",
        "My sister Ingrid lives in Bergen with two children.",
        "On Sundays I bake bread with far too much rye in it.",
    ],
}
ASK = "What is my cat called?"
AGAIN = "I forgot, how old is my cat?"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def memory(engine, tmp_path_factory) -> Iterator[Memory]:
    folder = tmp_path_factory.mktemp("llama-index")
    with Memory(engine, path=folder / "memory", embedder=FakeEmbedder()) as memory:
        yield memory


@pytest.fixture
def user_id(memory) -> str:
    """A user whose facts are encoded."""
    user_id = f"nora-{next(_numbers)}"
    for part, facts in FACTS.items():
        for fact in facts:
            memory.add(
                {"role": "user", "content": fact},
                user_id=user_id,
                run_id="earlier",
                metadata={"part": part},
            )
    assert memory.wait_encoded(120, user_id=user_id)
    return user_id


class Seen:
    """What the model reported, and what the server counted."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.reports: list[InjectionReport] = []
        self.part = "first"
        self._recalling: list[Any] = []
        self._before = self._count()

    def follow(self, recalling: Any) -> Any:
        """Have ``recalling`` recall the facts of the current pass."""
        recalling.filters = {"part": self.part}
        self._recalling.append(recalling)
        return recalling

    def _count(self) -> int:
        return self._engine.stats().counters.get("loaded_tokens", 0)

    def second_pass(self) -> None:
        """Look at what comes from here on, with the other facts."""
        self.part = "second"
        for recalling in self._recalling:
            recalling.filters = {"part": self.part}
        self.reports.clear()
        self._before = self._count()

    def facts(self) -> list[int]:
        """How many facts each request had."""
        return [len(report.fact_ids) for report in self.reports]

    def assert_injected(self, facts: list[int]) -> None:
        """Each request had so many facts, and none of them was computed from text."""
        assert self.facts() == facts, self.reports
        for report in self.reports:
            if report.fact_ids:
                assert report.status is InjectionStatus.INJECTED, report
                assert report.injected_tokens + report.cached_tokens > report.memory_tokens, report
        injected = sum(report.injected_tokens for report in self.reports)
        assert injected > 0
        assert self._count() - self._before > 0


@pytest.fixture
def seen(engine, user_id) -> Seen:
    return Seen(engine)


@pytest.fixture
async def llm(memory, user_id, seen):
    llm = InferScaleLLM(
        memory,
        user_id=user_id,
        max_tokens=16,
        temperature=0.0,
        max_retries=0,
        on_report=seen.reports.append,
    )
    yield llm
    await llm.aclose()


@pytest.fixture
def retriever(memory, user_id, seen) -> InferScaleRetriever:
    return seen.follow(InferScaleRetriever(memory, user_id=user_id, top_k=3))


@pytest.fixture
def make_chat_memory(memory, user_id, seen):
    """Memories of sessions that are not remembered, so that recall finds the facts above."""

    def make(**options) -> InferScaleMemory:
        settings = {"top_k": 2, "remember_roles": ()} | options
        return seen.follow(InferScaleMemory(memory, user_id=user_id, **settings))

    return make


# -- the model itself --------------------------------------------------------------------------


async def test_chat_in_every_way(llm, retriever, seen):
    context = "\n".join(n.get_content("llm") for n in await retriever.aretrieve(ASK))
    messages = [ChatMessage(role="system", content=context), ChatMessage(content=ASK)]
    whole = llm.chat(messages)
    texts = [whole.message.content, (await llm.achat(messages)).message.content]
    *_, last = llm.stream_chat(messages)
    texts.append(last.message.content)
    async for chunk in await llm.astream_chat(messages):
        last = chunk
    texts.append(last.message.content)
    seen.assert_injected([3] * 4)
    assert len(set(texts)) == 1
    assert last.additional_kwargs["inferscale"]["ttft_ms"] > 0
    assert whole.additional_kwargs["completion_tokens"] > 0
    assert whole.raw.inferscale["fact_ids"] == list(seen.reports[0].fact_ids)


async def test_text_completion(memory, user_id, retriever, seen):
    def prompt() -> str:
        handles = "\n".join(n.get_content("llm") for n in retriever.retrieve(ASK))
        return f"{handles}\nMy cat is called"

    llm = InferScaleLLM(
        memory,
        user_id=user_id,
        is_chat_model=False,
        max_tokens=8,
        max_retries=0,
        on_report=seen.reports.append,
    )
    llm.complete(prompt())
    seen.second_pass()
    llm.complete(prompt())
    await llm.acomplete(prompt())
    list(llm.stream_complete(prompt()))
    async for _ in await llm.astream_complete(prompt()):
        pass
    await llm.aclose()
    seen.assert_injected([3] * 4)


async def test_injection_does_not_change_the_prompt(llm, memory, user_id, retriever, seen):
    """The oracle: the same tokens as text. Greedy answers may differ by a rounding, prompts not."""
    handles = "\n".join(n.get_content("llm") for n in retriever.retrieve(ASK))
    messages = [ChatMessage(role="system", content=handles), ChatMessage(content=ASK)]
    llm.chat(messages)
    llm.model_copy(update={"inject": False}).chat(messages)
    injected, text = seen.reports
    assert (injected.status, text.status) == (InjectionStatus.INJECTED, InjectionStatus.TEXT)
    assert injected.prompt_tokens == text.prompt_tokens
    assert injected.fact_ids == text.fact_ids
    assert text.injected_tokens == 0


# -- chat engines ------------------------------------------------------------------------------


async def test_simple_chat_engine(llm, make_chat_memory, seen):
    engine = SimpleChatEngine.from_defaults(
        llm=llm, memory=make_chat_memory(), system_prompt="Be brief."
    )
    engine.chat(ASK)
    seen.second_pass()
    engine.chat(AGAIN)
    await engine.achat(AGAIN)
    for _ in engine.stream_chat(AGAIN).response_gen:
        pass
    async for _ in (await engine.astream_chat(AGAIN)).async_response_gen():
        pass
    seen.assert_injected([2] * 4)
    assert all("[[ifs:" not in (m.content or "") for m in engine.chat_history)


async def test_context_chat_engine(llm, retriever, make_chat_memory, seen):
    """Documents and memory together: three chunks and two facts, of which some are the same."""
    engine = ContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=make_chat_memory(), system_prompt="Be brief."
    )
    first = engine.chat(ASK)
    assert first.source_nodes[0].text in FACTS["first"]
    seen.second_pass()
    engine.chat(ASK)
    await engine.achat(ASK)
    for _ in engine.stream_chat(ASK).response_gen:
        pass
    seen.assert_injected([3] * 3)


async def test_condense_plus_context_chat_engine(llm, retriever, make_chat_memory, seen):
    """The memory is in the condensing prompt as well, and injected there, too."""
    engine = CondensePlusContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=make_chat_memory()
    )
    engine.chat(ASK)
    # What memory gives counts as history, so that even the first question is condensed.
    assert len(seen.reports) == 2
    seen.second_pass()
    await engine.achat(AGAIN)
    condensed, answered = seen.facts()
    assert condensed == 2
    assert answered >= 3
    seen.assert_injected([condensed, answered])


# -- query engines -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "requests"),
    [
        ("compact", [3]),
        ("tree_summarize", [3]),
        # One chunk a call: each is injected by itself, and nothing is saved on the others.
        ("refine", [1, 1, 1]),
        ("accumulate", [1, 1, 1]),
    ],
)
async def test_query_engine(llm, retriever, seen, mode, requests):
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode)
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    assert {n.text for n in response.source_nodes} == set(FACTS["second"])
    await engine.aquery(ASK)
    seen.assert_injected(requests * 2)


async def test_query_engine_streams(llm, retriever, seen):
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)
    list(engine.query(ASK).response_gen)
    seen.second_pass()
    list(engine.query(ASK).response_gen)
    seen.assert_injected([3])


async def test_postprocessors(llm, retriever, seen):
    engine = RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.1), LongContextReorder()],
    )
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    seen.assert_injected([len(response.source_nodes)])


async def test_llm_rerank(llm, retriever, seen):
    """The reranker is shown the texts; what it keeps is injected."""
    asked = []

    def choose(answer: str, num_choices: int):
        # A model of this size does not answer in the format asked for.
        asked.append(answer)
        return [2, 1], [9.0, 5.0]

    plain = llm.without_memory()
    rerank = LLMRerank(llm=plain, top_n=2, parse_choice_select_answer_fn=choose)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[rerank])
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    assert len(asked) == 2
    assert [n.score for n in response.source_nodes] == [9.0, 5.0]
    assert seen.reports[0].prompt_tokens > 100
    seen.assert_injected([0, 2])


async def test_documents_with_chunks_encoded_ahead(llm, memory, user_id, seen):
    documents = [
        Document(text="\n\n".join(facts) * 6, id_=part, metadata={"part": part})
        for part, facts in FACTS.items()
    ]
    library = seen.follow(
        InferScaleRetriever.from_documents(
            documents, memory, user_id=user_id, run_id="docs", top_k=2
        )
    )
    assert memory.wait_encoded(120, user_id=user_id)
    engine = RetrieverQueryEngine.from_args(library, llm=llm)
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    seen.assert_injected([2])
    assert {n.node.ref_doc_id for n in response.source_nodes} == {"second"}


async def test_a_synthesizer_by_itself(llm, retriever, seen):
    synthesizer = get_response_synthesizer(llm=llm, response_mode="compact_accumulate")
    await synthesizer.asynthesize(ASK, retriever.retrieve(ASK))
    seen.second_pass()
    await synthesizer.asynthesize(ASK, retriever.retrieve(ASK))
    seen.assert_injected([3])


# -- agents ------------------------------------------------------------------------------------


class CallsTheTool(InferScaleLLM):
    """Calls the one tool when the user has spoken, as a bigger model would by itself.

    Every other step is the real model's, with the tool's answer in its prompt.
    """

    async def _achat(self, messages, **kwargs):
        if messages[-1].role != MessageRole.USER or not kwargs.get("tools"):
            return await super()._achat(messages, **kwargs)
        name = kwargs["tools"][0]["function"]["name"]
        call = ToolCallBlock(tool_call_id="call-1", tool_name=name, tool_kwargs={"input": ASK})
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))


@pytest.fixture
async def calling_llm(llm, memory, user_id, seen):
    calling = CallsTheTool(
        memory, user_id=user_id, max_tokens=16, max_retries=0, on_report=seen.reports.append
    )
    yield calling
    await calling.aclose()


@pytest.fixture
def facts_tool(retriever) -> RetrieverTool:
    return RetrieverTool.from_defaults(
        retriever, name="look_up", description="Looks up what is known about the user."
    )


async def test_function_agent_with_a_retriever_tool(calling_llm, facts_tool, seen):
    """The model answers from the handles in the tool's message; tools are in the request."""
    agent = FunctionAgent(llm=calling_llm, tools=[facts_tool], streaming=False)
    await agent.run(ASK)
    seen.second_pass()
    handler = agent.run(ASK)
    results = [e async for e in handler.stream_events() if isinstance(e, ToolCallResult)]
    await handler
    assert "[[ifs:" in results[0].tool_output.content
    seen.assert_injected([3])


async def test_function_agent_with_memory(llm, make_chat_memory, seen):
    """Streaming; and what was recalled is there at every step."""
    agent = FunctionAgent(llm=llm, tools=[], system_prompt="Be brief.")
    await agent.run(ASK, memory=make_chat_memory())
    seen.second_pass()
    output = await agent.run(ASK, memory=make_chat_memory())
    assert output.raw["inferscale"]["fact_ids"]
    seen.assert_injected([2])


async def test_agent_workflow(calling_llm, facts_tool, make_chat_memory, seen):
    """Handles of memory and of a tool in one request: each fact counts once."""
    agent = FunctionAgent(name="clerk", llm=calling_llm, tools=[facts_tool], streaming=False)
    flow = AgentWorkflow(agents=[agent], root_agent="clerk")
    await flow.run(user_msg=ASK, memory=make_chat_memory(top_k=1))
    seen.second_pass()
    await flow.run(user_msg=ASK, memory=make_chat_memory(top_k=1))
    seen.assert_injected([3])


async def test_agent_workflow_with_core_memory_and_block(
    llm, memory, user_id, make_core_memory, seen
):
    block = seen.follow(InferScaleMemoryBlock(memory, user_id=user_id, top_k=2))
    flow = AgentWorkflow(agents=[FunctionAgent(name="clerk", llm=llm, tools=[])])
    for session in ("one", "two"):
        chat = make_core_memory(session_id=session, memory_blocks=[block])
        await flow.run(user_msg=ASK, memory=chat)
        if session == "one":
            seen.second_pass()
    seen.assert_injected([2])


async def test_react_agent(llm, make_chat_memory, seen):
    """Without a system prompt it drops memory's system messages: the user's message is kept."""
    agent = ReActAgent(llm=llm, tools=[], streaming=False)

    async def ask(**options) -> None:
        try:
            await agent.run(ASK, memory=make_chat_memory(**options), max_iterations=1)
        except WorkflowRuntimeError as error:  # a model of this size does not keep to the format
            assert "Max iterations" in str(error)

    await ask()
    seen.second_pass()
    await ask()
    seen.assert_injected([2])
    seen.second_pass()
    await ask(insert_method="system")
    assert seen.facts() == [0]


async def test_react_agent_with_a_tool(llm, facts_tool, seen):
    """What a tool observed is a user's message there; its handles count."""
    agent = ReActAgent(llm=llm, tools=[facts_tool], streaming=False)

    async def ask() -> None:
        observed = (await facts_tool.acall(ASK)).content
        step = ObservationReasoningStep(observation=observed)
        asked = [ChatMessage(content=ASK)]
        await llm.achat(agent.formatter.format([facts_tool], asked, current_reasoning=[step]))

    await ask()
    seen.second_pass()
    await ask()
    seen.assert_injected([3])


async def test_query_engine_tool(llm, retriever, seen):
    """The tool's own model call is injected; what the agent sees is its answer, without handles."""
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    tool = QueryEngineTool.from_defaults(engine, name="ask", description="Asks the notes.")
    await tool.acall(ASK)
    seen.second_pass()
    said = (await tool.acall(ASK)).content
    assert "[[ifs:" not in said
    seen.assert_injected([3])


async def test_query_engine_tool_in_a_function_agent(llm, calling_llm, retriever, seen):
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    tool = QueryEngineTool.from_defaults(engine, name="ask", description="Asks the notes.")
    agent = FunctionAgent(llm=calling_llm, tools=[tool], streaming=False)
    await agent.run(ASK)
    seen.second_pass()
    await agent.run(ASK)
    # The tool's own call, then the agent's from its answer.
    seen.assert_injected([3, 0])
