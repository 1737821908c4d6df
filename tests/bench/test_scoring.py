from __future__ import annotations

import pytest

from inferscale_sdk.bench.quality.scoring import answer_f1, gold_recall, tokens

MULTI_HOP, TEMPORAL, OPEN_DOMAIN, SINGLE_HOP = 1, 2, 3, 4


def test_words_are_compared_stemmed_without_articles_and_punctuation():
    assert tokens("The cats, and a Dog's running!") == ["cat", "dog", "run"]


@pytest.mark.parametrize(
    ("answer", "gold", "category", "f1"),
    [
        ("7 May 2023", "7 May 2023", TEMPORAL, 1.0),
        ("in May", "7 May 2023", TEMPORAL, 2 / 5),  # 1 of 2 given, 1 of 3 wanted
        ("nothing of it", "7 May 2023", TEMPORAL, 0.0),
        ("", "yes", SINGLE_HOP, 0.0),
        ("the the the", "yes", SINGLE_HOP, 0.0),
        ("painting", "paintings", SINGLE_HOP, 1.0),
        ("1,000 dollars", "1000 dollars", SINGLE_HOP, 1.0),
        ("dog dog", "dog", SINGLE_HOP, 2 / 3),  # a multiset: the second one counts against it
        ("yes", "Yes; she said so twice", OPEN_DOMAIN, 1.0),
        ("yes", "Yes; she said so twice", SINGLE_HOP, 1 / 3),
        ("swimming, pottery", "pottery, camping, swimming", MULTI_HOP, 2 / 3),
        ("swimming pottery", "pottery, swimming", MULTI_HOP, 2 / 3),  # not split: half right twice
        ("pottery, camping", "pottery, camping", SINGLE_HOP, 1.0),  # not split here
    ],
)
def test_official_f1_on_cases_computed_by_hand(answer, gold, category, f1):
    assert answer_f1(answer, gold, category) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "gold", "recall"),
    [
        ("She adopted two cats last May", "two cats", 1.0),
        ("one cat", "two cats", 0.5),
        ("dogs", "two cats", 0.0),
        ("anything", "the", 0.0),
    ],
)
def test_gold_recall(answer, gold, recall):
    assert gold_recall(answer, gold) == pytest.approx(recall)
