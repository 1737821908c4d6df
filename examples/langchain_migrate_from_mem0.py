r"""From Mem0: the verbs are the same, the prompt need not hold the memories any more.

Before::

    from mem0 import Memory

    memory = Memory()
    memory.add(messages, user_id="alice")
    found = memory.search("What may I eat?", filters={"user_id": "alice"})["results"]
    notes = "\n".join(item["memory"] for item in found)
    model.invoke([("system", f"What you know:\n{notes}"), ("user", question)])

After: see below. Adding calls no model, ids are arguments, and the notes are handles.
Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address.
"""

from __future__ import annotations

from inferscale_sdk.bridge import shared_memory
from langchain_inferscale import ChatInferScale


def main() -> None:
    """Add, search, answer."""
    memory = shared_memory()  # or Memory(VLLMEngine("http://…"))
    memory.add(
        [
            {"role": "user", "content": "I am allergic to peanuts."},
            {"role": "assistant", "content": "I will keep that in mind."},
        ],
        user_id="alice",
    )
    memory.wait_encoded(60)
    question = "What may I not eat?"
    for scored in memory.search(question, top_k=2, user_id="alice"):
        print(f"{scored.score:.3f}  {scored.fact.text}")

    notes = "\n".join(str(handle) for handle in memory.handles(question, user_id="alice"))
    model = ChatInferScale(user_id="alice", temperature=0, max_tokens=40)
    answer = model.invoke([("system", f"What you know:\n{notes}"), ("user", question)])
    print(answer.text.strip())
    print(answer.response_metadata["inferscale"]["status"], answer.usage_metadata)


if __name__ == "__main__":
    main()
