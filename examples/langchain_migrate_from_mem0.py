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
    for scored in memory.search("What may I not eat?", top_k=2, user_id="alice"):
        print(f"{scored.score:.3f}  {scored.fact.text}")

    model = ChatInferScale(user_id="alice", temperature=0, max_tokens=40)
    # The first question teaches the server the system text before the notes; from the second on,
    # it and the notes are injected.
    for question in ("What may I not eat?", "Can I have peanut butter?"):
        notes = "\n".join(str(handle) for handle in memory.handles(question, user_id="alice"))
        answer = model.invoke([("system", f"What you know:\n{notes}"), ("user", question)])
        report = answer.response_metadata["inferscale"]
        print(question, "->", answer.text.strip())
        print(f"  {report['injected_tokens']} of {report['prompt_tokens']} prompt tokens injected")


if __name__ == "__main__":
    main()
