"""A LangGraph store whose items are found by meaning and injected by their handles.

Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from langchain_inferscale import ChatInferScale, InferScaleStore


def main() -> None:
    """Put items, search them in a node, answer with them injected."""
    store = InferScaleStore(user_label=1)  # ("memories", <user>)
    namespace = ("memories", "alice")
    store.put(namespace, "food", {"text": "I am allergic to peanuts", "kind": "health"})
    store.put(namespace, "home", {"text": "I live in Lisbon", "kind": "place"})
    store.put(
        namespace, "visit", {"text": "Ines visits this week", "kind": "plan"}, ttl=7 * 24 * 60
    )
    store.memory.wait_encoded(60)

    model = ChatInferScale(temperature=0, max_tokens=40)

    def answer(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
        user = config["configurable"]["user_id"]
        items = store.search(("memories", user), query=state["messages"][-1].text, limit=2)
        handles = store.handles(items) if isinstance(store, InferScaleStore) else []
        return {"messages": [model.invoke(state["messages"], inferscale={"handles": handles})]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(store=store)
    config: RunnableConfig = {"configurable": {"user_id": "alice"}}
    for question in ("Where do I live?", "What must I not eat?"):
        said = graph.invoke({"messages": [HumanMessage(question)]}, config)["messages"][-1]
        report = said.response_metadata["inferscale"]
        print(question, "->", said.text.strip(), f"({report['injected_tokens']} tokens injected)")


if __name__ == "__main__":
    main()
