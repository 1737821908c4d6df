"""A chat engine that remembers.

Start a server with ``inferscale serve``, set ``INFERSCALE_BASE_URL`` to its address, and run this
twice: what was said in the first run is known in the second.
"""

from __future__ import annotations

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory

from inferscale_sdk import InjectionReport
from inferscale_sdk.bridge import shared_memory


def show(report: InjectionReport) -> None:
    """What became of the memory of a request."""
    print(f"       ({len(report.fact_ids)} facts, {report.injected_tokens} tokens injected)")


def main() -> None:
    """Two sessions of one user; the second knows what the first was told."""
    llm = InferScaleLLM(user_id="alice", temperature=0.0, max_tokens=40, on_report=show)
    sessions = {
        "monday": ["My sister Ines plays the violin.", "My dog is called Pepper."],
        "tuesday": ["What does my sister play?", "And what is my dog called?"],
    }
    for session, questions in sessions.items():
        memory = InferScaleMemory.from_defaults(llm=llm, user_id="alice", session_id=session)
        engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
        for text in questions:
            print("You:  ", text)
            print("Model:", engine.chat(text).response.strip())
        shared_memory().wait_encoded(60, user_id="alice")
    print(shared_memory().count(user_id="alice"), "statements are remembered.")


if __name__ == "__main__":
    main()
