"""From a plain vector store: change the imports of store and model, keep the chain.

Before::

    from langchain_core.vectorstores import InMemoryVectorStore as Store
    from langchain_openai import ChatOpenAI as Chat

    store = Store.from_texts(TEXTS, embedding)
    model = Chat(base_url="http://127.0.0.1:8000/v1", api_key="-", model="…")

After: the lines marked below. Start a server with ``inferscale serve`` and set
``INFERSCALE_BASE_URL`` to its address.
"""

from __future__ import annotations

from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.retrieval import create_retrieval_chain
from langchain_core.prompts import ChatPromptTemplate

from langchain_inferscale import ChatInferScale as Chat  # changed
from langchain_inferscale import InferScaleVectorStore as Store  # changed

TEXTS = ["Tea is picked in spring", "Coffee grows on hills", "Rivers run to the sea"]

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from this:\n\n{context}"), ("user", "{input}")]
)


def main() -> None:
    """The chain is as it was."""
    store = Store.from_texts(TEXTS, collection="nature", user_id="alice")
    model = Chat(user_id="alice", temperature=0, max_tokens=40)
    store.memory.wait_encoded(60)

    chain = create_retrieval_chain(
        store.as_retriever(), create_stuff_documents_chain(model, PROMPT)
    )
    result = chain.invoke({"input": "When is tea picked?"})
    print(result["answer"].strip())
    print([document.page_content for document in result["context"]])


if __name__ == "__main__":
    main()
