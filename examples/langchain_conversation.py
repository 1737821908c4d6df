"""A conversation chain that remembers.

Start a server with ``inferscale serve``, set ``INFERSCALE_BASE_URL`` to its address, and run this
twice: what was said in the first run is known in the second.
"""

from __future__ import annotations

import warnings

from inferscale_sdk.bridge import shared_memory
from langchain_inferscale import ChatInferScale, InferScaleMemory

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the classic chains are deprecated, and much used
    from langchain_classic.chains import ConversationChain


def main() -> None:
    """Two turns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = ConversationChain(
            llm=ChatInferScale(user_id="alice", temperature=0, max_tokens=40),
            memory=InferScaleMemory(user_id="alice"),
        )
    for text in ("My sister Ines plays the violin.", "What does my sister Ines play?"):
        print("You:  ", text)
        print("Model:", chain.invoke({"input": text})["response"].strip())
    shared_memory().wait_encoded(60, user_id="alice")
    print(shared_memory().count(user_id="alice"), "statements are remembered.")


if __name__ == "__main__":
    main()
