"""Agents and their tools."""

from __future__ import annotations

import pytest
from llama_index.core.agent.react.types import ObservationReasoningStep
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from llama_index.core.workflow import WorkflowRuntimeError
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemoryBlock
from paths_scene import ASK, MARKS

pytestmark = MARKS


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
