"""How good an answer is, without a judge: LoCoMo's own F1, and recall of the golden words."""

from __future__ import annotations

import string
from collections import Counter
from functools import cache
from typing import Any

from inferscale_sdk.errors import MissingDependency

__all__ = ["answer_f1", "gold_recall", "tokens"]

_ARTICLES = frozenset(("a", "an", "the", "and"))
_PUNCTUATION = frozenset(string.punctuation)
MULTI_HOP, OPEN_DOMAIN = 1, 3


@cache
def _stemmer() -> Any:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise MissingDependency("nltk", "bench", "scoring answers") from None
    return PorterStemmer()


def tokens(text: str) -> list[str]:
    """Words as LoCoMo's scorer compares them: no punctuation, no articles, stemmed."""
    text = text.replace(",", "").lower()
    text = "".join(char for char in text if char not in _PUNCTUATION)
    return [_stemmer().stem(word) for word in text.split() if word not in _ARTICLES]


def answer_f1(answer: str, gold: str, category: int) -> float:
    """LoCoMo's F1, 0 to 1.

    Open-domain golden answers are cut at their first semicolon. Of multi-hop answers both sides
    are split at commas, and the best F1 of each golden part is averaged.
    """
    if category == OPEN_DOMAIN:
        gold = gold.split(";")[0].strip()
    if category != MULTI_HOP:
        return _f1(answer, gold)
    answers = [part.strip() for part in answer.split(",")]
    golds = [part.strip() for part in gold.split(",")]
    return sum(max(_f1(a, g) for a in answers) for g in golds) / len(golds)


def gold_recall(answer: str, gold: str) -> float:
    """Share of the golden answer's words that the answer has, 0 to 1."""
    wanted, given = Counter(tokens(gold)), Counter(tokens(answer))
    return (wanted & given).total() / wanted.total() if wanted else 0.0


def _f1(answer: str, gold: str) -> float:
    given, wanted = Counter(tokens(answer)), Counter(tokens(gold))
    same = (given & wanted).total()
    if same == 0:
        return 0.0
    precision, recall = same / given.total(), same / wanted.total()
    return 2 * precision * recall / (precision + recall)
