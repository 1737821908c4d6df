"""An agent that serves two users, each with a memory and a model of his own view.

Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address. Tools need
a server started with ``--enable-auto-tool-choice`` and a tool parser.
"""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import RetrieverTool
from llama_index.core.workflow import Context, JsonSerializer
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory
from llama_index.retrievers.inferscale import InferScaleRetriever

from inferscale_sdk.bridge import shared_memory


def agent_of(user: str, llm: InferScaleLLM) -> FunctionAgent:
    """The agent as one user sees it: whatever it looks up is that user's."""
    tool = RetrieverTool.from_defaults(
        InferScaleRetriever(user_id=user, top_k=5),
        name="look_up",
        description="Looks up what the user said in earlier conversations.",
    )
    return FunctionAgent(llm=llm.scoped(user_id=user), tools=[tool], streaming=False)


async def main() -> None:
    """Tell each user's agent something, save the conversation, and go on with it."""
    llm = InferScaleLLM(temperature=0.0, max_tokens=40)
    for user, text in (("alice", "My dog is called Pepper."), ("bob", "My dog is called Salt.")):
        agent = agent_of(user, llm)
        context = Context(agent)
        memory = InferScaleMemory(user_id=user, session_id=f"{user}-1")
        await agent.run(text, ctx=context, memory=memory)
        saved = context.to_dict(serializer=JsonSerializer())
        await asyncio.to_thread(shared_memory().wait_encoded, 60, user_id=user)

        later = Context.from_dict(agent, saved, serializer=JsonSerializer())
        output = await agent.run("What is my dog called?", ctx=later)
        print(f"{user}: {str(output).strip()!r}")
        print(
            [fact.text for fact in shared_memory().get_all(user_id=user) if "dog" in fact.text][:1]
        )
    await llm.aclose()


if __name__ == "__main__":
    asyncio.run(main())
