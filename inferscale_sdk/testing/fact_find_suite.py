"""What finding facts must do; part of :class:`.fact_store_suite.FactStoreSuite`."""

# ruff: noqa: D102 - tests say in their names what must hold

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.types import Fact, Namespace, NewFact

__all__ = ["FactFindSuite"]

ALICE = Namespace(user_id="alice")


def day(number: int) -> datetime:
    """A day of January 2024, UTC."""
    return datetime(2024, 1, number, tzinfo=UTC)


def texts(facts: list[Fact]) -> list[str]:
    """Their texts."""
    return [fact.text for fact in facts]


class FactFindSuite:
    """Filters, times, conversations and pages."""

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({"topic": "food"}, "ad"),
            ({"topic": {"eq": "food"}}, "ad"),
            ({"topic": {"ne": "food"}}, "bce"),
            ({"topic": None}, "c"),
            ({"year": 2020}, "a"),
            ({"year": 2020.0}, "a"),
            ({"year": "2020"}, "d"),
            ({"year": {"gte": 2020, "lt": 2022}}, "ab"),
            ({"year": {"gt": 2020, "lte": 2022}}, "bc"),
            ({"topic": {"gt": "food"}}, "b"),
            ({"year": {"in": [2020, "2020", 7]}}, "ad"),
            ({"topic": {"in": ["food", None]}}, "acd"),
            ({"topic": {"in": []}}, ""),
            ({"flag": True}, "a"),
            ({"flag": 1}, "b"),
            ({"flag": {"in": [False]}}, "c"),
            ({"topic": {"exists": True}}, "abcd"),
            ({"topic": {"exists": False}}, "e"),
            ({"topic": "food", "year": 2020}, "a"),
            ({'we"ird.key[0]$': "v"}, "e"),
            ({"we": "v"}, ""),
            ({"$.topic": "food"}, ""),
            ({"topic' OR '1'='1": "x"}, ""),
            ({"big": {"gte": 2**70}}, "e"),
            ({}, "abcde"),
            (None, "abcde"),
        ],
        ids=repr,
    )
    def test_filters(self, store: FactStore, filters: Any, found: str) -> None:
        metadata: list[dict[str, Any]] = [
            {"topic": "food", "year": 2020, "flag": True},
            {"topic": "music", "year": 2021, "flag": 1},
            {"topic": None, "year": 2022, "flag": False},
            {"topic": "food", "year": "2020", "flag": "true"},
            {'we"ird.key[0]$': "v", "big": 2**70},
        ]
        store.add([NewFact(t, metadata=m) for t, m in zip("abcde", metadata, strict=True)], ALICE)
        assert "".join(texts(store.find(ALICE, filters=filters))) == found

    @pytest.mark.parametrize(
        "filters",
        [
            {"a": {"like": "x"}},
            {"a": {}},
            {"a": ["x"]},
            {"a": {"in": "x"}},
            {"a": {"exists": 1}},
            {"a": {"gt": None}},
            {"a": {"gt": True}},
            {"a": {"eq": {"b": 1}}},
            {"a": float("inf")},
            {1: "x"},
            ["a"],
        ],
        ids=repr,
    )
    def test_malformed_filters_are_refused(self, store: FactStore, filters: Any) -> None:
        with pytest.raises(ConfigurationError):
            store.find(ALICE, filters=filters)

    def test_times_bound_by_event_else_creation(self, store: FactStore) -> None:
        before = datetime.now(UTC)
        store.add(
            [NewFact("1st", event_time=day(1)), NewFact("2nd", event_time=day(2)), NewFact("now")],
            ALICE,
        )
        assert texts(store.find(ALICE, since=day(2))) == ["2nd", "now"]
        assert texts(store.find(ALICE, until=day(2))) == ["1st"]
        assert texts(store.find(ALICE, since=day(1), until=day(2))) == ["1st"]
        assert texts(store.find(ALICE, since=before)) == ["now"]
        with pytest.raises(ConfigurationError):
            store.find(ALICE, since=datetime(2024, 1, 1))

    def test_conversation_and_page(self, store: FactStore) -> None:
        store.add([NewFact("a", "c1"), NewFact("b", "c2"), NewFact("c", "c1")], ALICE)
        assert texts(store.find(ALICE, conversation_id="c1")) == ["a", "c"]
        for page in ({"limit": -1}, {"offset": -1}, {"limit": 1.5}):
            with pytest.raises(ConfigurationError):
                store.find(ALICE, **page)
