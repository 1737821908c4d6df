"""A process that holds some turns of an agent's conversation; run by test_checkpoints."""

from __future__ import annotations

import json
import sys

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from inferscale_sdk import Memory, VLLMEngine
from langchain_inferscale import ChatInferScale, InferScaleMemoryMiddleware


def main() -> None:
    """Arguments: server, folder, turns as JSON; prints one JSON object."""
    base_url, folder, turns = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    config = {"configurable": {"thread_id": "long", "user_id": "ann"}}
    with (
        VLLMEngine(base_url) as engine,
        Memory(engine, live_facts=0, path=f"{folder}/memory") as memory,
        SqliteSaver.from_conn_string(f"{folder}/checkpoints.db") as saver,
    ):
        agent = create_agent(
            ChatInferScale(memory=memory, temperature=0, max_tokens=8),
            tools=[],
            middleware=[InferScaleMemoryMiddleware(memory, top_k=4)],
            checkpointer=saver,
        )
        seen = agent.get_state(config).values.get("messages", [])
        reports = []
        for text in turns:
            state = agent.invoke({"messages": [HumanMessage(text)]}, config)
            reports.append(state["messages"][-1].response_metadata["inferscale"])
            memory.wait_encoded(30)
        values = agent.get_state(config).values
        known = {fact.id: fact.text for fact in memory.get_all(user_id="ann")}
        result = {
            "resumed": len(seen),
            "messages": len(values["messages"]),
            "types": sorted({type(message).__name__ for message in values["messages"]}),
            "handles_in_state": "[[ifs:" in repr(values),
            "reports": reports,
            "last_facts": [known[fact_id] for fact_id in reports[-1]["fact_ids"]],
        }
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
