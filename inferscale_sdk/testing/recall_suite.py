"""What every recall index must do. An index is done when this suite passes.

    class TestMyIndex(RecallSuite):
        def open_index(self, folder):
            return MyIndex(folder / "recall", FakeEmbedder())

Questions share words with the facts they should find, so that lexical indexes pass as well.
"""

# ruff: noqa: D102 - tests say in their names what must hold

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inferscale_sdk.errors import ConfigurationError, NamespaceError
from inferscale_sdk.recall.base import RecallIndex, RecallQuery
from inferscale_sdk.types import Fact, Namespace

__all__ = ["RecallSuite", "ask", "make_fact"]

ALICE = Namespace(user_id="alice")
LOOKALIKES = (
    "ali",
    "alice",
    "ALICE",
    "alice ",
    'al"ice',
    "al'ice",
    "alice%",
    "[alice]",
    "álice",
    "*",
)
CREATED = datetime(2024, 6, 1, tzinfo=UTC)

# Whatever a user types must be a question, never an error or a query language.
HOSTILE = (
    '"',
    '""" OR "',
    "tea OR NOT coffee AND (",
    "tea* ^tea -tea +tea {tea}: NEAR(tea tea, 2)",
    "terms : tea",
    "1_tea",
    "\0tea\0",
    "🍵🍵",
    "🍵 tea",
    "お茶が好き",
    "ชาเขียว",
    "'; DROP TABLE item; --",
    "the of and",
    "?!…",
    "tea " * 5000,
    "x" * 20_000,
)


def make_fact(fact_id: str, text: str, owner: Namespace = ALICE, **fields: Any) -> Fact:
    """A fact with everything else filled in."""
    return Fact(
        **{
            "id": fact_id,
            "version": 1,
            "text": text,
            "namespace": owner,
            "conversation_id": "",
            "position": 0,
            "created_at": CREATED,
            "updated_at": CREATED,
            **fields,
        }
    )


def ask(index: RecallIndex, text: str, scope: Namespace = ALICE, **fields: Any) -> list[str]:
    """Ids of what a search finds, best first."""
    return [hit.fact_id for hit in index.search(RecallQuery(text, scope, **fields))]


class RecallSuite:
    """Subclass it and give :meth:`open_index`; opening the same folder again finds the items."""

    has_similarity: ClassVar[bool] = True

    def open_index(self, folder: Path) -> RecallIndex:
        """An index that lives in this folder."""
        raise NotImplementedError

    @pytest.fixture
    def index(self, tmp_path: Path) -> Iterator[RecallIndex]:
        index = self.open_index(tmp_path)
        yield index
        index.close()

    # -- finding ---------------------------------------------------------------------------

    def test_the_best_comes_first(self, index: RecallIndex) -> None:
        index.upsert(
            [
                make_fact("f1", "Alice drinks green tea every morning"),
                make_fact("f2", "Alice owns a red bicycle"),
                make_fact("f3", "The bicycle of Bob is blue"),
            ]
        )
        assert ask(index, "who drinks green tea", top_k=1) == ["f1"]
        assert ask(index, "red bicycle")[:2] == ["f2", "f3"]
        hits = index.search(RecallQuery("red bicycle", ALICE))
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        if self.has_similarity:
            assert all(h.similarity is not None and -1 <= h.similarity <= 1.001 for h in hits)

    def test_top_k_limits_and_ties_go_by_id(self, index: RecallIndex) -> None:
        ids = [f"f{i:02d}" for i in range(30)]
        index.upsert([make_fact(i, "green tea") for i in reversed(ids)])
        for k in (1, 7, 29, 30):
            assert ask(index, "green tea", top_k=k) == ids[:k]
        assert ask(index, "green tea", top_k=100) == ids

    @pytest.mark.parametrize("text", HOSTILE, ids=[ascii(text)[:20] for text in HOSTILE])
    def test_any_text_is_a_question(self, index: RecallIndex, text: str) -> None:
        index.upsert([make_fact("f1", "green tea"), make_fact("f2", "coffee お茶が好き 🍵")])
        assert set(ask(index, text)) <= {"f1", "f2"}
        index.upsert([make_fact("f3", text.strip() or "x")])
        assert set(ask(index, "green tea")) <= {"f1", "f2", "f3"}

    def test_half_a_character_is_no_question(self, index: RecallIndex) -> None:
        # No fact store takes such a text; should one, its facts are found all the same.
        index.upsert([make_fact("f1", "green \ud800 tea")])
        assert ask(index, "green tea") == ["f1"]
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D800 at character 4"):
            ask(index, "tea \ud800")

    def test_a_blank_question_finds_nothing(self, index: RecallIndex) -> None:
        index.upsert([make_fact("f1", "green tea")])
        assert ask(index, "") == ask(index, " \n") == []

    def test_an_unknown_user_has_nothing(self, index: RecallIndex) -> None:
        assert ask(index, "green tea") == []
        index.upsert([make_fact("f1", "green tea")])
        assert ask(index, "green tea", Namespace(user_id="nobody")) == []

    # -- isolation -------------------------------------------------------------------------

    def test_users_that_look_alike_never_meet(self, index: RecallIndex) -> None:
        index.upsert(
            [
                make_fact(f"f{n}", "green tea", Namespace(user_id=u))
                for n, u in enumerate(LOOKALIKES)
            ]
        )
        for n, user in enumerate(LOOKALIKES):
            assert ask(index, "green tea", Namespace(user_id=user)) == [f"f{n}"]

    def test_a_scope_covers_what_it_leaves_open(self, index: RecallIndex) -> None:
        owners = [
            Namespace(user_id=u, agent_id=a, run_id=r, app_id=p)
            for u in ("u1", "u2", None)
            for a in ("a1", None)
            for r in ("r1", None)
            for p in ("p1", None)
        ][:-1]
        index.upsert([make_fact(f"f{n:02d}", "green tea", owner) for n, owner in enumerate(owners)])
        for scope in owners:
            expected = [f"f{n:02d}" for n, owner in enumerate(owners) if scope.covers(owner)]
            assert ask(index, "green tea", scope, top_k=50) == expected

    def test_others_do_not_move_my_ranking(self, index: RecallIndex) -> None:
        index.upsert(
            [make_fact("f1", "rare green tea"), make_fact("f2", "common common black tea")]
        )
        query = RecallQuery("rare common tea", ALICE)
        before = index.search(query)
        bob = Namespace(user_id="bob")
        index.upsert([make_fact(f"fb{i}", "rare rare tea", bob) for i in range(200)])
        assert index.search(query) == before

    @pytest.mark.parametrize(
        "bad",
        [
            {"top_k": 0},
            {"top_k": -1},
            {"top_k": 2.5},
            {"filters": {"a": {"like": "x"}}},
            {"filters": ["a"]},
            {"since": datetime(2024, 1, 1)},
        ],
        ids=repr,
    )
    def test_malformed_queries_are_refused(self, index: RecallIndex, bad: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            ask(index, "tea", **bad)

    def test_an_empty_scope_is_an_error(self, index: RecallIndex) -> None:
        with pytest.raises(NamespaceError):
            ask(index, "tea", Namespace())

    # -- filters ---------------------------------------------------------------------------

    def test_filters_come_before_top_k(self, index: RecallIndex) -> None:
        index.upsert(
            [make_fact(f"f{i:03d}", "green tea", metadata={"n": i}) for i in range(300)]
            + [make_fact("fz", "some tea with milk and a little honey", metadata={"n": 999})]
        )
        assert ask(index, "green tea", top_k=1, filters={"n": 999}) == ["fz"]
        assert ask(index, "green tea", top_k=3, filters={"n": {"gte": 250, "lt": 260}}) == [
            "f250",
            "f251",
            "f252",
        ]
        assert ask(index, "green tea", filters={"n": {"gt": 1000}}) == []

    def test_times_bound_by_event_else_creation(self, index: RecallIndex) -> None:
        index.upsert(
            [
                make_fact("f1", "green tea", event_time=datetime(2020, 1, 1, tzinfo=UTC)),
                make_fact("f2", "green tea", event_time=datetime(2021, 1, 1, tzinfo=UTC)),
                make_fact("f3", "green tea"),
            ]
        )
        start = datetime(2021, 1, 1, tzinfo=UTC)
        assert ask(index, "green tea", since=start) == ["f2", "f3"]
        assert ask(index, "green tea", until=start) == ["f1"]
        assert ask(index, "green tea", since=start, until=CREATED) == ["f2"]

    # -- changing --------------------------------------------------------------------------

    def test_a_new_version_replaces_the_old(self, index: RecallIndex) -> None:
        index.upsert([make_fact("f1", "green tea"), make_fact("f2", "green apples")])
        assert ask(index, "green tea")[0] == "f1"
        index.upsert([make_fact("f1", "red wine", version=2, metadata={"a": 1})])
        assert ask(index, "red wine")[0] == "f1"
        assert ask(index, "green", top_k=1) == ["f2"]
        assert ask(index, "red wine", filters={"a": 1}) == ["f1"]

    def test_an_older_version_changes_nothing(self, index: RecallIndex) -> None:
        index.upsert([make_fact("f1", "red wine", version=2)])
        index.upsert([make_fact("f1", "green tea", version=1, metadata={"old": True})])
        assert ask(index, "green tea red wine", filters={"old": True}) == []

    def test_upsert_twice_is_once(self, index: RecallIndex) -> None:
        for _ in range(3):
            index.upsert([make_fact("f1", "green tea"), make_fact("f1", "green tea")])
        assert ask(index, "green tea") == ["f1"]

    def test_removed_is_gone(self, index: RecallIndex) -> None:
        index.upsert([make_fact(f"f{i}", "green tea") for i in range(5)])
        assert len(ask(index, "green tea")) == 5
        index.remove(["f1", "f3", "unknown"])
        assert ask(index, "green tea") == ["f0", "f2", "f4"]
        index.remove([])
        index.remove(["f0", "f2", "f4"])
        assert ask(index, "green tea") == []
        index.upsert([make_fact("f9", "green tea")])
        assert ask(index, "green tea") == ["f9"]

    def test_a_softly_deleted_fact_is_removed(self, index: RecallIndex) -> None:
        index.upsert([make_fact("f1", "green tea")])
        index.upsert([make_fact("f1", "green tea", deleted_at=CREATED)])
        assert ask(index, "green tea") == []

    # -- life ------------------------------------------------------------------------------

    def test_everything_survives_a_restart(self, index: RecallIndex, tmp_path: Path) -> None:
        index.upsert([make_fact("f1", "green tea"), make_fact("f2", "red wine")])
        index.set_cursor(17)
        before = index.search(RecallQuery("green tea", ALICE))
        index.close()
        index.close()
        again = self.open_index(tmp_path)
        assert again.cursor() == 17
        assert again.search(RecallQuery("green tea", ALICE)) == before
        again.close()

    def test_two_open_indexes_see_each_other(self, index: RecallIndex, tmp_path: Path) -> None:
        other = self.open_index(tmp_path)
        index.upsert([make_fact("f1", "green tea"), make_fact("f2", "green apples")])
        assert ask(other, "green tea")[0] == "f1"
        other.upsert([make_fact("f3", "green tea ceremony")])
        assert set(ask(index, "green tea")) >= {"f1", "f3"}
        other.remove(["f1"])
        assert "f1" not in ask(index, "green tea")
        index.upsert([make_fact("f2", "green tea", version=2)])
        assert ask(other, "green tea", top_k=1) == ["f2"]
        other.close()

    def test_cursor_starts_at_zero(self, index: RecallIndex) -> None:
        assert index.cursor() == 0
        index.set_cursor(5)
        index.set_cursor(3)
        assert index.cursor() == 3

    def test_threads_may_write_and_search_at_once(self, index: RecallIndex) -> None:
        def work(number: int) -> None:
            try:
                owner = Namespace(user_id=f"user{number % 2}")
                for i in range(15):
                    index.upsert([make_fact(f"f{number}x{i}", f"green tea {i}", owner)])
                    found = ask(index, "green tea", owner, top_k=200)
                    assert f"f{number}x{i}" in found
                    assert all(int(hit[1]) % 2 == number % 2 for hit in found)
                    if i % 3 == 0:
                        index.remove([f"f{number}x{i}"])
            except BaseException as error:
                failed.append(error)

        failed: list[BaseException] = []
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        for user in range(2):
            assert len(ask(index, "green tea", Namespace(user_id=f"user{user}"), top_k=200)) == 20
