"""Questions to documents whose chunks were encoded ahead of time.

Start a server with ``inferscale serve`` and set ``INFERSCALE_BASE_URL`` to its address.
"""

from __future__ import annotations

from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.retrievers.inferscale import InferScaleRetriever

from inferscale_sdk import InjectionReport
from inferscale_sdk.bridge import shared_memory

HANDBOOK = """\
The ferry to Barreiro leaves from Terreiro do Paço every half hour. The crossing takes twenty
minutes. Dogs travel free of charge if they wear a muzzle.

Bicycles are carried on the lower deck. There is room for twelve of them. No booking is needed.

Lost property is kept for ninety days at the office beside the ticket hall. It is open from eight
to six, on Saturdays until noon.
"""


def main() -> None:
    """Store, ask, change, ask again. Running it twice stores nothing twice."""
    # Documents belong to a user, too: here to one that stands for the handbook's readers.
    chunks = [SentenceSplitter(chunk_size=70, chunk_overlap=0)]
    library = InferScaleRetriever.from_documents(
        [Document(text=HANDBOOK, id_="handbook")],
        user_id="handbook",
        top_k=2,
        transformations=chunks,
    )
    shared_memory().wait_encoded(120, user_id="handbook")

    reports: list[InjectionReport] = []
    llm = InferScaleLLM(
        user_id="handbook", temperature=0.0, max_tokens=40, on_report=reports.append
    )
    engine = RetrieverQueryEngine.from_args(library, llm=llm)
    # What stands before the chunks is LlamaIndex's own, so the server learns it from the first
    # question; from the second on, it and the chunks are injected.
    for question in ("How long does the crossing take?", "Where is lost property kept?"):
        answer = engine.query(question)
        print(question, "->", str(answer).strip())
        print("  from:", " | ".join(n.text.replace("\n", " ")[:60] for n in answer.source_nodes))
        report = reports[-1]
        print(f"  {report.injected_tokens} of {report.prompt_tokens} prompt tokens injected")

    # A changed document is refreshed: what it no longer says is forgotten.
    changed = Document(text=HANDBOOK.replace("twelve", "thirty"), id_="handbook")
    library.refresh([changed], transformations=chunks)
    found = " ".join(node.text for node in library.retrieve("bicycles"))
    changed_everywhere = "thirty" in found and "twelve" not in found
    print("After the change:", "thirty bicycles, not twelve" if changed_everywhere else found)


if __name__ == "__main__":
    main()
