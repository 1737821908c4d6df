"""In which order facts stand in a prompt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.order import FACT_ORDERS, arrange, check_order
from inferscale_sdk.types import Fact, Namespace

START = datetime(2026, 1, 1, tzinfo=UTC)


def fact(position: int, talk: str = "a", *, session: int | None = None, day: int | None = None):
    """Stored at ``position`` hours, having happened on ``day`` if that is known."""
    metadata: dict[str, Any] = {} if session is None else {"session": session}
    stored = START + timedelta(hours=position)
    return Fact(
        id=f"f{talk}{position}",
        version=1,
        text=f"{talk} {position}",
        namespace=Namespace(user_id="alice"),
        conversation_id=talk,
        position=position,
        created_at=stored,
        updated_at=stored,
        event_time=None if day is None else START + timedelta(days=day),
        metadata=metadata,
    )


def texts(facts: list[Fact]) -> list[str]:
    return [f.text for f in facts]


def test_by_relevance():
    given = [fact(2), fact(0), fact(1)]  # the most relevant last
    assert texts(arrange(given, "best-last")) == ["a 2", "a 0", "a 1"]
    assert texts(arrange(given, "best-first")) == ["a 1", "a 0", "a 2"]


def test_by_when_it_happened_or_was_stored():
    given = [fact(9, day=-1), fact(0), fact(5), fact(3, day=400)]
    assert texts(arrange(given, "time")) == ["a 9", "a 0", "a 5", "a 3"]


def test_facts_of_one_moment_stay_in_the_order_they_were_said():
    given = [fact(n, day=3) for n in (7, 2, 5)]
    assert texts(arrange(given, "time")) == ["a 2", "a 5", "a 7"]


def test_a_talk_stays_together_and_the_one_with_the_best_fact_comes_last():
    given = [fact(4, "a"), fact(3, "b"), fact(1, "a"), fact(0, "b"), fact(9, "c")]
    assert texts(arrange(given, "session")) == ["a 1", "a 4", "b 0", "b 3", "c 9"]


def test_sessions_of_a_conversation_are_told_apart_where_they_are_known():
    given = [fact(5, session=2), fact(1, session=1), fact(4, session=2), fact(0, session=1)]
    assert texts(arrange(given, "session")) == ["a 4", "a 5", "a 0", "a 1"]
    assert texts(arrange([fact(1, "b", session=1), *given], "session"))[0] == "b 1"


@pytest.mark.parametrize("order", FACT_ORDERS)
def test_no_fact_comes_or_goes(order):
    given = [fact(i * 7 % 10, "ab"[i % 2], session=i % 3) for i in range(10)]
    assert sorted(texts(arrange(given, order))) == sorted(texts(given))
    assert arrange([], order) == []
    assert check_order(order) == order


@pytest.mark.parametrize("order", ["", "best", "Time", 3, None])
def test_an_unknown_order_is_named_with_those_there_are(order):
    with pytest.raises(ConfigurationError, match=r"order=.* must be one of best-last, best-first"):
        check_order(order)
