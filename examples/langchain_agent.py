"""An agent with long-term memory: middleware recalls and saves, tools search and forget.

Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address. Tools need
a server started with ``--enable-auto-tool-choice`` and a tool parser.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from inferscale_sdk.bridge import shared_memory
from langchain_inferscale import (
    ChatInferScale,
    InferScaleMemoryMiddleware,
    create_forget_tool,
    create_memory_tools,
)


def main() -> None:
    """Two users of one agent, each in threads of their own."""
    agent = create_agent(
        ChatInferScale(temperature=0, max_tokens=40),  # no user: it serves them all
        tools=create_memory_tools(),
        middleware=[InferScaleMemoryMiddleware(top_k=5)],
        checkpointer=InMemorySaver(),
    )
    conversations = [
        ("alice", "monday", "My dog is called Pepper."),
        ("bob", "monday", "My dog is called Salt."),
        ("alice", "tuesday", "What is my dog called?"),
        ("bob", "tuesday", "What is my dog called?"),
    ]
    for user, day, text in conversations:
        config = {"configurable": {"user_id": user, "thread_id": f"{user}-{day}"}}
        answer = agent.invoke({"messages": [HumanMessage(text)]}, config)["messages"][-1]
        facts = len(answer.response_metadata["inferscale"]["fact_ids"])
        print(f"{user}: {text} -> {answer.text.strip()!r} ({facts} facts)")
        shared_memory().wait_encoded(60)

    forget = create_forget_tool(user_id="bob")
    print(forget.invoke({"statement": "My dog is called Salt."}))


if __name__ == "__main__":
    main()
