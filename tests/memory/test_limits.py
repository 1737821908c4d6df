"""What one user may put in: refused with an error that names the limit, and nothing is stored."""

from __future__ import annotations

import pytest

from inferscale_sdk.errors import ConfigurationError, StoreFull
from inferscale_sdk.types import Namespace, NewFact


def test_a_user_may_not_have_more_facts_than_allowed(make):
    memory = make(max_facts=3)
    memory.add(["one", "two"], user_id="alice")
    with pytest.raises(StoreFull, match=r"limit of 3.*raise max_facts"):
        memory.add(["three", "four"], user_id="alice")
    with pytest.raises(StoreFull):
        memory.add_facts([NewFact("three"), NewFact("four")], user_id="alice", run_id="r")
    assert memory.count(user_id="alice") == 2
    memory.add(["one", "two", "three"], user_id="bob")
    memory.delete_all(user_id="bob")
    memory.add(["four", "five", "six"], user_id="bob")


def test_the_limit_is_one_users_whatever_the_agent(make):
    memory = make(max_facts=2)
    memory.add("one", user_id="alice", agent_id="a")
    memory.add("two", user_id="alice", agent_id="b")
    with pytest.raises(StoreFull, match="for user 'alice' and"):
        memory.add("three", user_id="alice", agent_id="c")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ({"user_id": "nora", "app_id": "notes"}, "user 'nora', app 'notes'"),
        ({"agent_id": "hal", "run_id": "r"}, "agent 'hal'"),
        ({"run_id": "r"}, "run 'r'"),
        ({"app_id": "notes"}, "app 'notes'"),
    ],
)
def test_whose_limit_it_is_is_said_in_words(make, ids, named):
    store = make(max_facts=0).store
    with pytest.raises(StoreFull, match=f"for {named} and"):
        store.add([NewFact("tea")], Namespace(**ids), max_facts=0)


@pytest.mark.parametrize("most", [-1, "3", 1.5, True])
def test_a_limit_must_be_a_whole_number(make, most):
    with pytest.raises(ConfigurationError, match="max_facts"):
        make(max_facts=most)


@pytest.mark.parametrize(
    ("fact", "named"),
    [
        (NewFact("x" * 9000), "8192"),
        (NewFact("x", speaker="s" * 200), "128"),
        (NewFact("x", source="s" * 5000), "source=.*4096"),
        (NewFact("x", conversation_id="s" * 5000), "conversation_id=.*4096"),
        (NewFact("x", metadata={"a": "s" * (1 << 20)}), "metadata has .*1048576"),
    ],
)
def test_every_field_of_a_fact_has_an_end(memory, fact, named):
    with pytest.raises(ConfigurationError, match=named):
        memory.add_facts([NewFact("fine"), fact], user_id="alice")
    assert memory.count(user_id="alice") == 0


def test_a_huge_turn_is_cut_not_refused(memory):
    facts = memory.add("word " * 10_000, user_id="alice")
    assert len(facts) > 40 and max(len(fact.text) for fact in facts) <= 1000
