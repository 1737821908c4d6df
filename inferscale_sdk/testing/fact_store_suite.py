"""What every fact store must do. A store is done when this suite passes.

    class TestMyStore(FactStoreSuite):
        def open_store(self, folder):
            return MyStore(folder / "facts")

Finding and the ledgers of encodings have suites of their own, included here.
"""

# ruff: noqa: D102 - tests say in their names what must hold

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from inferscale_sdk.errors import ConfigurationError, NamespaceError, NotFoundError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.testing.fact_find_suite import FactFindSuite, day, texts
from inferscale_sdk.testing.fact_ledger_suite import FactLedgerSuite
from inferscale_sdk.types import FactEventKind, Namespace, NewFact

__all__ = ["FactStoreSuite"]

ALICE = Namespace(user_id="alice")
# Ids that a careless comparison would take for one another.
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


def _ids(store: FactStore) -> list[str]:
    return [event.fact_id for event in store.changes(0)]


class FactStoreSuite(FactFindSuite, FactLedgerSuite):
    """Subclass it and give :meth:`open_store`; opening the same folder again finds the facts."""

    # -- adding and reading ----------------------------------------------------------------

    def test_a_fact_comes_back_as_it_was_given(self, store: FactStore) -> None:
        metadata = {"topic": "food", "n": 3, "deep": {"a": [1, None, True, 2.5]}, "ключ": "знач"}
        new = NewFact("Likes ☕ and 日本茶\n\0!", "chat", "Alice", "turn-1", day(3), metadata)
        [fact] = store.add([new], ALICE)
        assert store.get(fact.id, ALICE) == fact
        assert (fact.text, fact.conversation_id, fact.speaker) == (new.text, "chat", "Alice")
        assert (fact.source, fact.event_time, dict(fact.metadata)) == ("turn-1", day(3), metadata)
        assert (fact.version, fact.position, fact.namespace) == (1, 0, ALICE)
        assert fact.created_at == fact.updated_at
        assert fact.created_at.utcoffset() == timedelta(0)
        assert fact.id.startswith("f") and fact.id.isalnum() and fact.id == fact.id.lower()

    def test_ids_are_unique_and_order_is_kept(self, store: FactStore) -> None:
        facts = store.add([NewFact(f"fact {i}") for i in range(200)], ALICE)
        assert len({fact.id for fact in facts}) == 200
        assert [fact.position for fact in facts] == list(range(200))
        assert store.find(ALICE) == facts
        assert store.find(ALICE, limit=3, offset=5) == facts[5:8]
        assert store.find(ALICE, limit=0) == []

    def test_positions_continue_in_their_conversation_and_partition(self, store: FactStore) -> None:
        tutor = Namespace(user_id="alice", agent_id="tutor")
        store.add([NewFact("a", "c1"), NewFact("b", "c2"), NewFact("c", "c1")], ALICE)
        [later] = store.add([NewFact("d", "c1")], tutor)
        [other] = store.add([NewFact("e", "c1")], Namespace(user_id="bob"))
        assert (later.position, other.position) == (2, 0)
        assert store.preceding(later, 10) == store.preceding(other, 10) == []

    def test_what_precedes_is_of_the_same_owner(self, store: FactStore) -> None:
        owners = [
            ALICE,
            Namespace(user_id="alice", agent_id="tutor"),
            Namespace(user_id="alice", run_id="r"),
            Namespace(user_id="alice", agent_id="tutor", run_id="r"),
            Namespace(user_id="alice", app_id="p"),
            Namespace(user_id="bob"),
        ]
        for turn in range(3):
            for owner in owners:
                store.add([NewFact(f"{owner.canonical()} {turn}", "c")], owner)
        for owner in owners:
            said = [fact for fact in store.current(_ids(store)) if fact.namespace == owner]
            assert store.preceding(said[2], 10) == said[:2]
            assert store.preceding(said[2], 1) == said[1:2]
            assert store.preceding(said[2], 0) == store.preceding(said[0], 10) == []

    def test_time_zones_are_kept_as_instants(self, store: FactStore) -> None:
        moment = datetime(2024, 5, 1, 9, 30, 0, 123456, timezone(timedelta(hours=5, minutes=30)))
        [fact] = store.add([NewFact("x", event_time=moment)], ALICE)
        assert store.get(fact.id, ALICE).event_time == moment

    def test_long_text_is_kept_whole(self, store: FactStore) -> None:
        text = "é" * 8192
        [fact] = store.add([NewFact(text)], ALICE)
        assert store.get(fact.id, ALICE).text == text

    @pytest.mark.parametrize(
        "new",
        [
            NewFact(""),
            NewFact(" \n"),
            NewFact("x" * 8193),
            NewFact("lone \ud800 surrogate"),
            NewFact(3),  # type: ignore[arg-type]
            NewFact("x", event_time=datetime(2024, 1, 1)),
            NewFact("x", metadata={"a": {1, 2}}),
            NewFact("x", metadata={"a": float("nan")}),
            NewFact("x", metadata={1: "a"}),  # type: ignore[dict-item]
            NewFact("x", conversation_id=None),  # type: ignore[arg-type]
        ],
        ids=repr,
    )
    def test_bad_facts_are_refused_and_nothing_is_stored(
        self, store: FactStore, new: NewFact
    ) -> None:
        with pytest.raises(ConfigurationError):
            store.add([NewFact("good"), new], ALICE)
        assert store.count(ALICE) == 0
        assert store.last_seq() == 0

    def test_adding_nothing(self, store: FactStore) -> None:
        assert store.add([], ALICE) == []

    def test_get_many_keeps_the_order_asked_for(self, store: FactStore) -> None:
        facts = store.add([NewFact(f"fact {i}") for i in range(1500)], ALICE)
        wanted = [fact.id for fact in reversed(facts)]
        assert [f.id for f in store.get_many([*wanted, "fnothing"], ALICE)] == wanted
        assert store.get_many([], ALICE) == []
        assert [f.id for f in store.current(wanted)] == wanted

    # -- isolation -------------------------------------------------------------------------

    def test_users_that_look_alike_never_meet(self, store: FactStore) -> None:
        facts = {u: store.add([NewFact(f"of {u}")], Namespace(user_id=u))[0] for u in LOOKALIKES}
        for user in LOOKALIKES:
            scope = Namespace(user_id=user)
            assert texts(store.find(scope)) == [f"of {user}"]
            assert store.count(scope) == 1
            ids = [fact.id for fact in facts.values()]
            assert store.get_many(ids, scope) == [facts[user]]
            for other in set(LOOKALIKES) - {user}:
                for call in (store.get, store.history, store.delete):
                    with pytest.raises(NotFoundError):
                        call(facts[other].id, scope)
                with pytest.raises(NotFoundError):
                    store.update(facts[other].id, scope, text="mine now")
        store.delete_all(Namespace(user_id="ali"), hard=True)
        assert len(store.namespaces()) == len(LOOKALIKES) - 1

    def test_a_scope_covers_what_it_leaves_open(self, store: FactStore) -> None:
        owners = [
            Namespace(user_id=u, agent_id=a, run_id=r, app_id=p)
            for u in ("u1", None)
            for a in ("a1", None)
            for r in ("r1", None)
            for p in ("p1", None)
        ][:-1]
        for owner in owners:
            store.add([NewFact(owner.canonical())], owner)
        for scope in owners:
            expected = sorted(o.canonical() for o in owners if scope.covers(o))
            assert sorted(texts(store.find(scope))) == expected
            assert store.count(scope) == len(expected)
        assert set(store.namespaces()) == set(owners)

    def test_an_empty_scope_is_an_error_everywhere(self, store: FactStore) -> None:
        nobody = Namespace()
        calls: list[Any] = [
            lambda: store.add([NewFact("x")], nobody),
            lambda: store.get("f1", nobody),
            lambda: store.get_many(["f1"], nobody),
            lambda: store.get_many([], nobody),
            lambda: store.find(nobody),
            lambda: store.count(nobody),
            lambda: store.update("f1", nobody, text="x"),
            lambda: store.delete("f1", nobody),
            lambda: store.delete_all(nobody),
            lambda: store.history("f1", nobody),
            lambda: store.pending("p", scope=nobody),
        ]
        for call in calls:
            with pytest.raises(NamespaceError):
                call()

    # -- changing --------------------------------------------------------------------------

    def test_update_makes_a_version_and_keeps_the_rest(self, store: FactStore) -> None:
        new = NewFact("likes tea", "c", "Alice", "s", day(1), {"a": 1, "b": 2})
        [first] = store.add([new], ALICE)
        second = store.update(first.id, ALICE, text="likes coffee")
        assert (second.version, second.text, second.event_time) == (2, "likes coffee", day(1))
        assert second.metadata == first.metadata
        assert second.created_at == first.created_at <= second.updated_at
        third = store.update(first.id, ALICE, metadata={"a": 3}, event_time=day(2))
        assert (third.version, dict(third.metadata), third.event_time) == (3, {"a": 3}, day(2))
        assert store.get(first.id, ALICE) == third

    def test_update_without_a_change_is_none(self, store: FactStore) -> None:
        [fact] = store.add([NewFact("x", event_time=day(1), metadata={"a": 1, "b": 2})], ALICE)
        same = store.update(fact.id, ALICE, text="x", metadata={"b": 2, "a": 1}, event_time=day(1))
        assert same == fact == store.update(fact.id, ALICE)
        assert store.last_seq() == 1

    def test_bad_updates_change_nothing(self, store: FactStore) -> None:
        [fact] = store.add([NewFact("x")], ALICE)
        bad: list[dict[str, Any]] = [
            {"text": " "},
            {"text": "x" * 8193},
            {"metadata": {"a": object()}},
            {"event_time": datetime(2024, 1, 1)},
        ]
        for change in bad:
            with pytest.raises(ConfigurationError):
                store.update(fact.id, ALICE, **change)
        assert store.get(fact.id, ALICE) == fact

    def test_soft_delete_hides_but_remembers(self, store: FactStore) -> None:
        first, second = store.add([NewFact("a"), NewFact("b")], ALICE)
        assert store.delete(first.id, ALICE) == first
        assert store.find(ALICE) == store.get_many([first.id, second.id], ALICE) == [second]
        assert store.current([first.id]) == store.preceding(second, 5) == []
        assert store.count(ALICE) == 1
        hidden = store.get(first.id, ALICE, include_deleted=True)
        assert hidden.deleted_at is not None and hidden.text == "a"
        assert texts(store.find(ALICE, include_deleted=True)) == ["a", "b"]
        kinds = [event.kind for event in store.history(first.id, ALICE)]
        assert kinds == [FactEventKind.ADD, FactEventKind.DELETE]
        assert store.history(first.id, ALICE)[-1].old_text == "a"
        for call in (store.get, store.delete, store.update):
            with pytest.raises(NotFoundError):
                call(first.id, ALICE)
        assert store.add([NewFact("c")], ALICE)[0].position == 2

    @pytest.mark.parametrize("softly_first", [False, True])
    def test_hard_delete_erases_every_text(self, store: FactStore, softly_first: bool) -> None:
        [fact] = store.add([NewFact("secret one")], ALICE)
        store.update(fact.id, ALICE, text="secret two")
        if softly_first:
            store.delete(fact.id, ALICE)
        assert store.delete(fact.id, ALICE, hard=True).text == "secret two"
        events = store.history(fact.id, ALICE)
        assert events[-1].kind is FactEventKind.PURGE
        assert all(event.old_text is None and event.new_text is None for event in events)
        assert all(event.new_text is None for event in store.changes(0))
        for include_deleted in (False, True):
            with pytest.raises(NotFoundError):
                store.get(fact.id, ALICE, include_deleted=include_deleted)
        with pytest.raises(NotFoundError):
            store.delete(fact.id, ALICE, hard=True)
        assert store.find(ALICE, include_deleted=True) == []
        assert store.namespaces() == []

    def test_delete_all_stays_within_its_scope(self, store: FactStore) -> None:
        tutor, bob = Namespace(user_id="alice", agent_id="tutor"), Namespace(user_id="bob")
        for owner in (ALICE, tutor, bob):
            store.add([NewFact("x"), NewFact("y")], owner)
        assert len(store.delete_all(tutor)) == 2
        assert len(store.delete_all(ALICE)) == 2
        assert store.delete_all(ALICE) == []
        assert (store.count(ALICE), store.count(bob)) == (0, 2)
        assert len(store.delete_all(ALICE, hard=True)) == 4, "softly deleted ones are erased too"
        assert store.find(ALICE, include_deleted=True) == []

    # -- history and change feed -----------------------------------------------------------

    def test_history_tells_what_happened(self, store: FactStore) -> None:
        [fact] = store.add([NewFact("one")], ALICE)
        store.update(fact.id, ALICE, text="two")
        store.delete(fact.id, ALICE)
        told = [
            (e.kind.value, e.version, e.old_text, e.new_text) for e in store.history(fact.id, ALICE)
        ]
        assert told == [
            ("add", 1, None, "one"),
            ("update", 2, "one", "two"),
            ("delete", 2, "two", None),
        ]
        with pytest.raises(NotFoundError):
            store.history("fnothing", ALICE)

    def test_the_feed_is_complete_and_ordered(self, store: FactStore) -> None:
        assert (store.last_seq(), store.changes(0)) == (0, [])
        facts = store.add([NewFact(f"fact {i}") for i in range(5)], ALICE)
        store.update(facts[0].id, ALICE, text="changed")
        store.delete(facts[1].id, ALICE, hard=True)
        events = store.changes(0)
        assert [e.seq for e in events] == sorted({e.seq for e in events})
        assert events[-1].seq == store.last_seq()
        assert store.changes(0, limit=2) + store.changes(events[1].seq) == events
        assert store.changes(store.last_seq()) == []
        assert all(event.namespace == ALICE for event in events)

    def test_a_hard_delete_does_not_reuse_its_seq(self, store: FactStore) -> None:
        [fact] = store.add([NewFact("x")], ALICE)
        store.delete(fact.id, ALICE, hard=True)
        seq = store.last_seq()
        store.add([NewFact("y")], ALICE)
        assert store.last_seq() > seq

    # -- threads ---------------------------------------------------------------------------

    def test_threads_lose_nothing(self, store: FactStore) -> None:
        def work(user: int) -> None:
            try:
                owner = Namespace(user_id=f"user{user % 2}")
                for i in range(20):
                    [fact] = store.add([NewFact(f"{user} {i}", "c")], owner)
                    store.update(fact.id, owner, text=f"{user} {i} again")
                    store.find(owner, limit=3)
            except Exception as error:
                failed.append(error)

        failed: list[Exception] = []
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        for user in range(2):
            facts = store.find(Namespace(user_id=f"user{user}"))
            assert sorted(fact.position for fact in facts) == list(range(60))
            assert all(fact.version == 2 for fact in facts)
        assert store.last_seq() == len(store.changes(0)) == 240
