"""A retrieval chain whose retriever hands out handles.

Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address.
"""

from __future__ import annotations

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from langchain_inferscale import ChatInferScale, InferScaleVectorStore, as_text

HOUSE_RULES = [
    "The kitchen closes at ten in the evening",
    "Guests may use the bicycles in the yard",
    "The wireless network is called Heron and its password is bluewater",
    "Breakfast is served from seven to nine",
]

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You answer guests of a hostel.\n{context}"), ("user", "{question}")]
)


def main() -> None:
    """Add documents once, ask about them."""
    store = InferScaleVectorStore(collection="hostel", user_id="hostel")
    store.add_texts(HOUSE_RULES, ids=[f"rule-{i}" for i in range(len(HOUSE_RULES))])
    store.memory.wait_encoded(60)  # their KV is made ahead of time

    chain = (
        {"context": store.as_retriever() | as_text, "question": RunnablePassthrough()}
        | PROMPT
        | ChatInferScale(user_id="hostel", temperature=0, max_tokens=40)
    )
    # What stands before the documents is this chain's own, so the server learns it from the first
    # question; from the second on, it and the documents are injected.
    for question in ("When is breakfast?", "What is the password of the network?"):
        answer = chain.invoke(question)
        report = answer.response_metadata["inferscale"]
        print(question, "->", answer.text.strip())
        print(f"  {report['injected_tokens']} of {report['prompt_tokens']} prompt tokens injected")


if __name__ == "__main__":
    main()
