"""Text to terms: what the lexical search compares."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

__all__ = ["MAX_QUERY_TERMS", "STOP_WORDS", "clean", "question_terms", "terms"]

MAX_QUERY_TERMS = 64

# Words that say nothing about what a fact is about.
STOP_WORDS = frozenset(
    """
    a about above after again all also am an and any are as at be been before being below
    between both but by can could d did do does doing down during each few for from further had
    has have having he her here hers him his how i if in into is it its just ll m may me might
    more most must my no nor not now of off on once only or other our ours out over own re s
    same shall she should so some such t than that the their theirs them then there these they
    this those through to too under until up us ve very was we were what when where which while
    who whom whose why will with would you your yours
    """.split()  # noqa: SIM905 - a list of words reads better as words
)

# Letters and digits, and whole blocks of scripts whose vowel signs Python calls neither.
_WORD = re.compile("(?:[^\\W_]|[\u0900-\u109f\u1780-\u17ff])+")
# Scripts written without spaces: a word is anywhere, so pairs of neighbours are compared.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def clean(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def terms(text: str) -> list[str]:
    """Folded words in order: case, width and accents do not count; punctuation separates.

    Runs of Chinese, Japanese, Thai, Lao, Burmese or Khmer become overlapping pairs.
    """
    folded = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(c for c in folded if not unicodedata.combining(c))
    return [term for word in _WORD.findall(bare) for term in _split_unspaced(word)]


def question_terms(text: str) -> list[str]:
    """Distinct terms of a question, at most 64; stop words go if something else is left."""
    found = list(dict.fromkeys(terms(text)))
    telling = [term for term in found if term not in STOP_WORDS]
    return (telling or found)[:MAX_QUERY_TERMS]


def _split_unspaced(word: str) -> Iterator[str]:
    start = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > start:
            yield word[start : run.start()]
        characters = run.group()
        if len(characters) == 1:
            yield characters
        for i in range(len(characters) - 1):
            yield characters[i : i + 2]
        start = run.end()
    if start < len(word):
        yield word[start:]
