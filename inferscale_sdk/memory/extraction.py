"""Facts out of messages by a language model; only on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.types import Message, Namespace, NewFact

__all__ = ["Extractor", "engine_extractor", "parse_facts"]

Extractor: TypeAlias = "Callable[[Sequence[Message]], Sequence[str | NewFact]]"

_INSTRUCTION = (
    "You read part of a conversation and list what is worth remembering about the people in it: "
    "facts, preferences, plans, events. Write one short, self-contained sentence per line, with "
    "names instead of pronouns. Write nothing else. If nothing is worth remembering, write NONE."
)
_MAX_TOKENS = 512
_BULLET = re.compile(r"^\s*(?:[-*•]+|\(?\d{1,3}[.)])\s+")


def engine_extractor(engine: Engine, planner: Planner, scope: Namespace) -> Extractor:
    """An extractor that asks the engine's own model.

    The conversation is given as a quotation inside one message, so that nothing said in it is
    taken for an instruction's turn of the chat.
    """

    def extract(messages: Sequence[Message]) -> list[str]:
        said = "\n".join(f"{m.name or m.role}: {m.content}" for m in messages)
        info = engine.info()
        plan = planner.plan(
            [Message("system", _INSTRUCTION), Message("user", f"Conversation:\n{said}\n\nFacts:")],
            facts=(),
            encodings={},
            scope=scope,
            fingerprint=info.fingerprint,
            max_model_len=info.max_model_len,
            reserve_tokens=_MAX_TOKENS,
            inject=False,
        )
        return parse_facts(engine.generate(plan, Sampling(max_tokens=_MAX_TOKENS)).text)

    return extract


def parse_facts(answer: str) -> list[str]:
    """One fact per line of a model's answer, without bullets; none for ``NONE``.

    Raises:
        ValueError: The answer is empty, so that it is neither facts nor the word that there are
            none.
    """
    lines = [_BULLET.sub("", line).strip() for line in answer.splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError("the model answered nothing; expected facts, or the word NONE")
    if len(lines) == 1 and lines[0].strip(" .*`'\"").upper() == "NONE":
        return []
    return list(dict.fromkeys(lines))
