"""What every fact store's ledgers must do; part of :class:`.fact_store_suite.FactStoreSuite`."""

# ruff: noqa: D102 - tests say in their names what must hold

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.facts.base import EncodingRecord, FactStore, KeyState
from inferscale_sdk.types import Fact, Namespace, NewFact

__all__ = ["FactLedgerSuite"]

ALICE = Namespace(user_id="alice")
BOB = Namespace(user_id="bob")
PROFILE = "model:frame:w20"


def encoded(
    fact: Fact, key: str, window: Sequence[Fact] = (), *, profile: str = PROFILE
) -> EncodingRecord:
    """A record that the fact was encoded behind ``window``."""
    return EncodingRecord(
        fact_id=fact.id,
        version=fact.version,
        profile=profile,
        key=key,
        n_tokens=12,
        context_fact_ids=tuple(f.id for f in window),
        created_at=datetime(2024, 1, 1, 12, tzinfo=UTC),
    )


class FactLedgerSuite:
    """Give :meth:`open_store` in a subclass."""

    def open_store(self, folder: Path) -> FactStore:
        """A store with ``max_fact_chars`` 8192 that lives in this folder."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[FactStore]:
        store = self.open_store(tmp_path)
        yield store
        store.close()

    def test_what_was_recorded_comes_back(self, store: FactStore) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        records = [encoded(a, "k1"), encoded(b, "k2", [a])]
        store.record_encodings(records)
        assert store.encodings([a.id, b.id, "fnothing"], PROFILE) == {
            a.id: records[0],
            b.id: records[1],
        }
        assert store.encodings([a.id], "another profile") == {}
        assert store.forget_queue() == []

    def test_pending_is_what_lacks_a_record_in_order(self, store: FactStore) -> None:
        store.add([NewFact("b2", "c2"), NewFact("b1", "c1")], BOB)
        a1, _a2 = store.add([NewFact("a1", "c1"), NewFact("a2", "c1")], ALICE)
        expected = ["a1", "a2", "b1", "b2"]
        assert [f.text for f in store.pending(PROFILE)] == expected
        store.add([NewFact("a3", "c1")], ALICE)
        assert [f.text for f in store.pending(PROFILE, limit=3)] == ["a1", "a2", "a3"]
        store.record_encodings([encoded(a1, "k1")])
        assert [f.text for f in store.pending(PROFILE)] == ["a2", "a3", "b1", "b2"]
        assert [f.text for f in store.pending(PROFILE, scope=BOB)] == ["b1", "b2"]
        assert store.count_pending(PROFILE) == 4
        assert store.count_pending(PROFILE, scope=ALICE) == 2
        assert store.count_pending("another profile") == 5
        assert len(store.pending("another profile")) == 5

    def test_deleted_facts_are_not_pending(self, store: FactStore) -> None:
        soft, hard, encoded_one = store.add([NewFact(t) for t in "abc"], ALICE)
        store.record_encodings([encoded(encoded_one, "k1")])
        assert store.count_pending(PROFILE) == 2
        store.delete(soft.id, ALICE)
        store.delete(hard.id, ALICE, hard=True)
        store.delete(encoded_one.id, ALICE)
        assert store.pending(PROFILE) == []
        assert store.count_pending(PROFILE, scope=ALICE) == 0

    def test_a_new_text_needs_new_kv_and_so_do_those_behind_it(self, store: FactStore) -> None:
        a, b, c = store.add([NewFact(t) for t in "abc"], ALICE)
        store.record_encodings([encoded(a, "ka"), encoded(b, "kb", [a]), encoded(c, "kc", [b])])
        store.update(a.id, ALICE, text="a, changed")
        assert set(store.encodings([a.id, b.id, c.id], PROFILE)) == {c.id}
        assert sorted(store.forget_queue()) == ["ka", "kb"]
        assert [f.text for f in store.pending(PROFILE)] == ["a, changed", "b"]

    def test_a_new_event_time_needs_new_kv(self, store: FactStore) -> None:
        [a] = store.add([NewFact("a")], ALICE)
        store.record_encodings([encoded(a, "ka")])
        store.update(a.id, ALICE, event_time=datetime(2024, 1, 1, tzinfo=UTC))
        assert store.forget_queue() == ["ka"]

    def test_new_metadata_keep_the_kv(self, store: FactStore) -> None:
        [a] = store.add([NewFact("a")], ALICE)
        store.record_encodings([encoded(a, "ka")])
        changed = store.update(a.id, ALICE, metadata={"x": 1})
        assert store.encodings([a.id], PROFILE)[a.id].version == changed.version == 2
        assert store.forget_queue() == []
        assert store.pending(PROFILE) == []

    @pytest.mark.parametrize("hard", [False, True])
    @pytest.mark.parametrize("everything", [False, True])
    def test_delete_forgets_the_kv(self, store: FactStore, hard: bool, everything: bool) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "ka"), encoded(b, "kb", [a])])
        store.record_encodings([encoded(a, "ka2", profile="other")])
        if everything:
            store.delete_all(ALICE, hard=hard)
        else:
            store.delete(a.id, ALICE, hard=hard)
        assert store.encodings([a.id, b.id], PROFILE) == {}
        assert sorted(store.forget_queue()) == ["ka", "ka2", "kb"]
        assert store.count_pending(PROFILE) == (0 if everything else 1)

    def test_a_record_that_came_too_late_is_forgotten(self, store: FactStore) -> None:
        a, b, c, d = store.add([NewFact(t) for t in "abcd"], ALICE)
        store.update(a.id, ALICE, text="moved on")
        store.delete(b.id, ALICE)
        store.delete(c.id, ALICE, hard=True)
        late = [
            encoded(a, "k-old-version"),
            encoded(b, "k-deleted"),
            encoded(c, "k-purged"),
            encoded(d, "k-window-deleted", [b]),
            encoded(d, "k-window-purged", [c]),
        ]
        store.record_encodings(late)
        assert store.encodings([f.id for f in (a, b, c, d)], PROFILE) == {}
        assert store.forget_queue() == [record.key for record in late]
        store.record_encodings([encoded(d, "k-good")])
        assert store.encodings([d.id], PROFILE)[d.id].key == "k-good"

    def test_a_window_of_another_partition_is_refused(self, store: FactStore) -> None:
        [mine] = store.add([NewFact("mine")], ALICE)
        [theirs] = store.add([NewFact("theirs")], BOB)
        store.record_encodings([encoded(mine, "k", [theirs])])
        assert store.encodings([mine.id], PROFILE) == {}
        assert store.forget_queue() == ["k"]

    def test_a_window_of_another_agent_or_run_is_refused(self, store: FactStore) -> None:
        others = [
            Namespace(user_id="alice", agent_id="tutor"),
            Namespace(user_id="alice", run_id="r"),
        ]
        [mine] = store.add([NewFact("mine")], ALICE)
        for n, owner in enumerate(others):
            [theirs] = store.add([NewFact("theirs")], owner)
            store.record_encodings([encoded(mine, f"k{n}", [theirs])])
            store.record_encodings([encoded(theirs, f"t{n}", [mine])])
        assert store.encodings([mine.id, theirs.id], PROFILE) == {}
        assert store.forget_queue() == ["k0", "t0", "k1", "t1"]

    def test_a_second_record_replaces_the_first(self, store: FactStore) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(b, "k1", [a])])
        store.record_encodings([encoded(b, "k2")])
        assert store.encodings([b.id], PROFILE)[b.id] == encoded(b, "k2")
        assert store.forget_queue() == ["k1"]
        store.update(a.id, ALICE, text="no longer in the window of b")
        assert store.encodings([b.id], PROFILE)[b.id].key == "k2"
        store.record_encodings([encoded(b, "k2")])
        assert store.forget_queue() == ["k1"], "the same key again is not forgotten"

    def test_a_key_two_facts_share_lives_while_one_has_it(self, store: FactStore) -> None:
        a, b = store.add([NewFact("same"), NewFact("same")], ALICE)
        store.record_encodings([encoded(a, "k"), encoded(b, "k")])
        store.delete(a.id, ALICE)
        assert store.forget_queue() == []
        assert store.encodings([b.id], PROFILE)[b.id].key == "k"
        store.delete(b.id, ALICE)
        assert store.forget_queue() == ["k"]

    def test_a_key_recorded_again_is_not_forgotten(self, store: FactStore) -> None:
        a = store.add([NewFact("a")], ALICE)[0]
        store.record_encodings([encoded(a, "k")])
        assert store.invalidate([a.id]) == ["k"]
        store.record_encodings([encoded(a, "k")])
        assert store.forget_queue() == []

    def test_drop_makes_pending_again_and_forgets_nothing(self, store: FactStore) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "ka"), encoded(b, "kb", [a])])
        assert store.drop_encodings(["ka", "unknown"]) == 1
        assert store.drop_encodings([]) == 0
        assert [f.text for f in store.pending(PROFILE)] == ["a"]
        assert store.forget_queue() == []

    def test_invalidate_reaches_windows_and_profiles(self, store: FactStore) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "k1"), encoded(b, "k2", [a])])
        store.record_encodings([encoded(b, "k3", [a], profile="other")])
        assert sorted(store.invalidate([a.id, "fnothing"])) == ["k1", "k2", "k3"]
        assert store.invalidate([a.id]) == []
        assert store.count_pending(PROFILE) == store.count_pending("other") == 2

    def test_the_forget_queue_is_first_in_first_out(self, store: FactStore) -> None:
        facts = store.add([NewFact(f"{i}") for i in range(5)], ALICE)
        store.record_encodings([encoded(f, f"k{i}") for i, f in enumerate(facts)])
        for fact in facts:
            store.delete(fact.id, ALICE)
        assert store.forget_queue(limit=2) == ["k0", "k1"]
        store.forget_done(["k0", "k1", "unknown"])
        assert store.forget_queue() == ["k2", "k3", "k4"]
        assert set(store.dropped_keys()) >= {"k0", "k1"}
        assert len(store.dropped_keys(limit=1)) == 1

    def test_what_was_dropped_and_is_there_anew_does_not_count_as_dropped(
        self, store: FactStore
    ) -> None:
        [a, b] = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "k1")])
        store.delete(a.id, ALICE)
        store.forget_done(["k1"])
        assert store.dropped_keys() == ["k1"]
        store.record_encodings([encoded(b, "k1")])
        assert store.dropped_keys() == []

    def test_everything_survives_a_restart(self, store: FactStore, tmp_path: Path) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "ka")])
        store.record_encodings([encoded(b, "kb")])
        store.delete(b.id, ALICE)
        secret, seq = store.secret, store.last_seq()
        store.close()
        store.close()
        again = self.open_store(tmp_path)
        assert (again.secret, again.last_seq(), len(secret)) == (secret, seq, 32)
        assert again.find(ALICE) == [a]
        assert again.encodings([a.id], PROFILE) == {a.id: encoded(a, "ka")}
        assert again.forget_queue() == ["kb"]
        again.close()

    def test_two_open_stores_see_each_other(self, store: FactStore, tmp_path: Path) -> None:
        other = self.open_store(tmp_path)
        [fact] = store.add([NewFact("a")], ALICE)
        assert other.get(fact.id, ALICE) == fact
        other.update(fact.id, ALICE, text="b")
        assert store.get(fact.id, ALICE).text == "b"
        assert other.last_seq() == store.last_seq() == 2
        other.close()

    # -- keys at large -----------------------------------------------------------------------

    def test_a_capture_that_was_never_recorded_is_an_orphan(self, store: FactStore) -> None:
        [a] = store.add([NewFact("a")], ALICE)
        store.note_keys(["k1", "k2"])
        store.note_keys(["preamble"], lasting=True)
        store.record_encodings([encoded(a, "k1")])
        assert store.orphans(datetime.now(UTC) - timedelta(hours=1)) == []
        later = datetime.now(UTC) + timedelta(seconds=1)
        assert store.orphans(later) == ["k2"]
        assert store.queue_forget(["k2", "k1"]) == ["k2"]
        assert (store.orphans(later), store.forget_queue()) == ([], ["k2"])
        store.forget_done(["k2"])
        assert (store.orphans(later), store.key_states(["k2"])) == ([], {})

    def test_a_record_that_was_dropped_leaves_an_orphan(self, store: FactStore) -> None:
        [a] = store.add([NewFact("a")], ALICE)
        store.record_encodings([encoded(a, "k1")])
        store.drop_encodings(["k1"])
        assert store.orphans(datetime.now(UTC)) == ["k1"]
        store.note_keys(["k1"])  # encoded again: under way
        assert store.orphans(datetime.now(UTC) - timedelta(hours=1)) == []

    def test_what_is_known_of_keys(self, store: FactStore) -> None:
        a, b = store.add([NewFact("a"), NewFact("b")], ALICE)
        store.record_encodings([encoded(a, "ka"), encoded(b, "kb")])
        store.note_keys(["kc"])
        store.note_keys(["kp"], lasting=True)
        store.delete(b.id, ALICE, hard=True)
        assert store.key_states(["ka", "kb", "kc", "kp", "foreign"]) == {
            "ka": KeyState.IN_USE,
            "kb": KeyState.TO_FORGET,
            "kc": KeyState.NOTED,
            "kp": KeyState.IN_USE,
        }

    def test_recorded_keys_come_in_pages(self, store: FactStore) -> None:
        facts = store.add([NewFact(str(i)) for i in range(5)], ALICE)
        store.record_encodings([encoded(f, f"k{i}") for i, f in enumerate(facts)])
        store.record_encodings([encoded(facts[0], "other", profile="other")])
        assert store.profiles() == [PROFILE, "other"]
        assert store.recorded_keys(PROFILE, limit=3) == ["k0", "k1", "k2"]
        assert store.recorded_keys(PROFILE, after="k2") == ["k3", "k4"]
        assert store.recorded_keys("nothing") == []

    def test_keys_behind_a_fact_are_those_that_go_with_it(self, store: FactStore) -> None:
        a, b, c = store.add([NewFact(t) for t in "abc"], ALICE)
        store.record_encodings([encoded(a, "ka"), encoded(b, "kb", [a]), encoded(c, "kc")])
        store.record_encodings([encoded(a, "ka2", profile="other")])
        assert store.keys_behind([a.id]) == ["ka", "ka2", "kb"]
        assert store.keys_behind(["fnothing"]) == []
        store.delete(a.id, ALICE)
        assert sorted(store.forget_queue()) == ["ka", "ka2", "kb"]

    def test_a_partition_takes_no_more_than_it_may(self, store: FactStore) -> None:
        store.add([NewFact("a"), NewFact("b")], ALICE, max_facts=3)
        with pytest.raises(StoreFull, match=r"2 facts .* 2 more would pass the limit of 3"):
            store.add([NewFact("c"), NewFact("d")], ALICE, max_facts=3)
        assert store.count(ALICE) == 2
        store.add([NewFact("x")], BOB, max_facts=1)
        [gone, _] = store.find(ALICE)
        store.delete(gone.id, ALICE)
        store.add([NewFact("c"), NewFact("d")], ALICE, max_facts=3)
