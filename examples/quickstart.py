"""Remember a conversation, and answer from it with its KV injected into vLLM.

Run it with ``.venv/bin/python examples/quickstart.py`` after ``make setup``.
"""

from inferscale_sdk import Memory, VLLMEngine

CONVERSATION = [
    {"role": "user", "content": "I'm Nora, and I inspect bridges for a living."},
    {"role": "assistant", "content": "Nice to meet you, Nora!"},
    {"role": "user", "content": "I'm allergic to walnuts, so I always read the label."},
    {"role": "user", "content": "My cat Biscuit is fourteen years old."},
]


def main() -> None:
    """Start a server with the bundled model, remember, and ask twice."""
    with VLLMEngine.launch() as engine, Memory(engine, path="my-memory") as memory:
        if not memory.count(user_id="nora"):
            memory.add(CONVERSATION, user_id="nora")
        memory.wait_encoded()

        answer = memory.answer("What is my cat called?", user_id="nora", max_tokens=40)
        print(answer.text)
        print(f"{answer.report.status}: {answer.report.injected_tokens} tokens injected")

        for chunk in memory.stream("What must I not eat?", user_id="nora", max_tokens=40):
            print(chunk.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
