from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.types import Namespace, NewFact

ALICE, BOB = Namespace(user_id="alice"), Namespace(user_id="bob")


def batches(strategy, store, facts):
    return list(strategy.batches(facts, store))


def texts(facts):
    return [fact.text for fact in facts]


def test_a_group_stands_behind_the_turns_before_it(store, add):
    facts = add(10)
    first, second, third = batches(PrecedingTurns(2, 4), store, facts)
    assert first.window == () and first.facts == tuple(facts[:4])
    assert second.window == tuple(facts[2:4]) and second.facts == tuple(facts[4:8])
    assert third.window == tuple(facts[6:8]) and third.facts == tuple(facts[8:])


def test_a_single_new_fact_gets_its_whole_window(store, add):
    facts = add(9)
    (batch,) = batches(PrecedingTurns(5), store, facts[8:])
    assert batch.window == tuple(facts[3:8])
    assert batch.facts == (facts[8],)


def test_windows_do_not_cross_conversations_or_users(store, add):
    one = add(3, ALICE, "c1")
    two = add(3, ALICE, "c2")
    other = add(3, BOB, "c1")
    got = batches(PrecedingTurns(20), store, [*one, *two, *other])
    assert [b.facts for b in got] == [tuple(one), tuple(two), tuple(other)]
    assert all(b.window == () for b in got)


TUTOR = Namespace(user_id="alice", agent_id="tutor")
RUN = Namespace(user_id="alice", run_id="r")


def test_windows_and_requests_do_not_cross_agents_or_runs(store, add):
    said = {owner: [] for owner in (ALICE, TUTOR, RUN)}
    for _ in range(3):  # they take turns in one conversation
        for owner, facts in said.items():
            facts += add(2, owner)
    everything = sorted((f for facts in said.values() for f in facts), key=lambda f: f.position)
    got = batches(PrecedingTurns(3, 4), store, everything)
    for owner, facts in said.items():
        first, second = (b for b in got if b.facts[0].namespace == owner)
        assert (first.window, first.facts) == ((), tuple(facts[:4]))
        assert (second.window, second.facts) == (tuple(facts[1:4]), tuple(facts[4:]))
    assert len(got) == 6


def test_no_encode_prompt_mixes_agents_or_runs(store, engine, make_encoder):
    owners = {"alpha": ALICE, "beta": TUTOR, "gamma": RUN, "delta": BOB}
    for turn in range(5):
        for word, owner in owners.items():
            store.add([NewFact(f"{word} said thing {turn}", conversation_id="c")], owner)
    make_encoder().drain()
    assert store.count_pending(make_encoder().profile()) == 0
    words = [
        {word for word in owners if f"{word} said" in engine.prompt_text(plan)}
        for plan in engine.encodes
    ]
    assert all(len(found) == 1 for found in words) and set.union(*words) == set(owners)


def test_a_gap_in_the_queue_ends_a_group(store, add):
    facts = add(10)
    got = batches(PrecedingTurns(3, 8), store, [facts[2], facts[3], facts[7]])
    assert [b.facts for b in got] == [(facts[2], facts[3]), (facts[7],)]
    assert got[1].window == tuple(facts[4:7])


def test_a_deleted_fact_leaves_no_gap(store, add):
    facts = add(6)
    store.delete(facts[3].id, ALICE)
    left = [facts[2], facts[4], facts[5]]
    (batch,) = batches(PrecedingTurns(3, 8), store, left)
    assert batch.facts == tuple(left)
    assert batch.window == (facts[0], facts[1])


def test_no_window_means_no_company(store, add):
    facts = add(3)
    got = batches(PrecedingTurns(0), store, facts)
    assert [(b.window, b.facts) for b in got] == [((), (f,)) for f in facts]


@pytest.mark.parametrize(("w", "group"), [(0, 1), (1, 8), (8, 8), (20, 20), (50, 50)])
def test_default_group(w, group):
    assert PrecedingTurns(w).group == group


def test_name_is_part_of_the_profile():
    assert PrecedingTurns(20).name != PrecedingTurns(50).name


@pytest.mark.parametrize("kwargs", [{"w": -1}, {"group": 0}, {"max_tokens": 1}])
def test_bad_numbers_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match=r"must be|negative"):
        PrecedingTurns(**kwargs)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    n=st.integers(1, 30),
    w=st.integers(0, 7),
    group=st.integers(1, 9),
    pending=st.sets(st.integers(0, 29)),
    deleted=st.sets(st.integers(0, 29)),
)
def test_every_fact_is_captured_once_behind_what_precedes_it(n, w, group, pending, deleted):
    store = SQLiteFactStore(":memory:")
    facts = store.add([NewFact(f"fact {i}", conversation_id="c") for i in range(n)], ALICE)
    for i in deleted:
        if i < n:
            store.delete(facts[i].id, ALICE)
    live = [f for i, f in enumerate(facts) if i not in deleted]
    waiting = [f for i, f in enumerate(facts) if i in pending - deleted]
    got = batches(PrecedingTurns(w, group), store, waiting)
    store.close()
    assert [f for b in got for f in b.facts] == waiting
    for batch in got:
        assert 1 <= len(batch.facts) <= group
        at = live.index(batch.facts[0])
        assert list(batch.window) == live[max(at - w, 0) : at]
        assert list(batch.facts) == live[at : at + len(batch.facts)]
