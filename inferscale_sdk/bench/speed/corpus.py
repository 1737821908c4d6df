"""Facts and questions to measure with: the persona corpus if it is there, else invented ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import ConfigurationError

__all__ = ["QUESTIONS", "Corpus", "load_corpus"]

QUESTIONS = (
    "What do I like to do on a free weekend?",
    "Which animals do I live with?",
    "What do I do for a living?",
    "Which food should you never cook for me?",
    "What kind of music do I listen to?",
    "Who are the people in my family?",
    "Which places have I travelled to?",
    "What would be a good present for me?",
    "Which sport do I practise?",
    "What am I afraid of?",
    "Which books or films do I love?",
    "What did I study?",
    "Where do I live, and do I like it there?",
    "Which languages do I speak?",
    "What do I want to do in ten years?",
    "How do I get to work in the morning?",
    "What is my favourite colour?",
    "What do I drink in the evening?",
    "Which instrument do I play?",
    "What did I do last summer?",
)
"""Questions that anybody could be asked."""

_SUBJECTS = (
    "my sister", "my brother", "my neighbour", "my boss", "an old friend", "my dog", "my cat",
    "my daughter", "my son", "my grandmother", "a colleague", "my teacher", "my cousin",
)  # fmt: skip
_DEEDS = (
    "taught me to cook", "gave me a book about", "once drove me to a fair on", "cannot stand",
    "collects everything on", "asked me for advice about", "works in a shop for",
    "dreams of", "wrote a long letter about", "won a small prize for", "laughs about",
)  # fmt: skip
_THINGS = (
    "lemon cake", "steam engines", "the violin", "wild mushrooms", "old maps", "sailing boats",
    "garden roses", "jazz records", "mountain huts", "clay pots", "chess openings",
    "train stations", "honey bees", "paper kites", "winter swimming", "detective novels",
    "tall ladders", "rye bread",
)  # fmt: skip
_TIMES = ("last spring", "years ago", "on a rainy Sunday", "before the move", "every other week")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Short facts about people.

    Args:
        name: Where they come from.
        texts: One statement each, none twice.
    """

    name: str
    texts: tuple[str, ...]

    def facts(self, n: int, *, start: int = 0) -> list[str]:
        """``n`` facts from the ``start``-th on; numbered once the corpus begins anew."""
        size = len(self.texts)
        found = []
        for place in range(start, start + n):
            text, lap = self.texts[place % size], place // size
            found.append(text if lap == 0 else f"{text} (note {lap + 1})")
        return found


def load_corpus(data: Path | None, *, seed: int = 0) -> Corpus:
    """The corpus in a file of personas, or an invented one.

    Args:
        data: JSON whose strings in lists are facts, as in the Multi-Session Chat personas:
            ``{"train": [{"Speaker 1": ["I have a dog."]}]}``. ``None`` for the invented one.
        seed: Of the order of invented facts.

    Raises:
        ConfigurationError: The file cannot be read, or holds no facts.
    """
    if data is None:
        return Corpus("invented", tuple(_invented(seed)))
    try:
        document = json.loads(data.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{data} cannot be read as JSON: {error}") from None
    texts = tuple(dict.fromkeys(_strings(document)))
    if not texts:
        raise ConfigurationError(
            f"{data} holds no lists of statements; personas look like "
            '{"train": [{"Speaker 1": ["I have a dog."]}]}'
        )
    return Corpus(data.name, texts)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, str) and inner.strip():
                yield inner.strip()
            else:
                yield from _strings(inner)


def _invented(seed: int) -> list[str]:
    """Every clause the words above make, two to a statement, about as long as what people say."""
    clauses = [
        f"{subject} {deed} {thing} {time}"
        for subject in _SUBJECTS
        for deed in _DEEDS
        for thing in _THINGS
        for time in _TIMES
    ]
    random.Random(seed).shuffle(clauses)  # noqa: S311 - an order, not a secret
    pairs = zip(clauses, clauses[1:] + clauses[:1], strict=True)
    return [f"{first[0].upper()}{first[1:]}, and {second}." for first, second in pairs]
