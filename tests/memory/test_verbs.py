from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inferscale_sdk.errors import (
    ConfigurationError,
    EngineUnavailable,
    NamespaceError,
    NotFoundError,
)
from inferscale_sdk.memory import DEFAULT_USER, Memory
from inferscale_sdk.types import FactEventKind, Namespace, NewFact

WHEN = datetime(2024, 5, 1, tzinfo=UTC)


def texts(facts):
    return [getattr(f, "fact", f).text for f in facts]


# -- add -----------------------------------------------------------------------------------


def test_one_fact_per_turn(memory):
    facts = memory.add(
        [
            {"role": "system", "content": "You are helpful"},
            {"role": "user", "content": "My dog is called Pepper"},
            {"role": "assistant", "content": "A fine name"},
        ],
        user_id="alice",
        run_id="r1",
        metadata={"topic": "pets"},
        timestamp=WHEN,
    )
    assert texts(facts) == ["My dog is called Pepper", "A fine name"]
    assert [f.speaker for f in facts] == ["user", "assistant"]
    assert {f.namespace for f in facts} == {Namespace(user_id="alice", run_id="r1")}
    assert {f.conversation_id for f in facts} == {"r1"}
    assert {f.event_time for f in facts} == {WHEN}
    assert [f.position for f in facts] == [0, 1]
    assert dict(facts[0].metadata) == {"topic": "pets"}


def test_a_statement_has_no_speaker(memory):
    (fact,) = memory.add("Alice is allergic to peanuts", user_id="alice")
    assert fact.speaker is None and fact.conversation_id == ""


def test_nothing_to_remember(memory):
    assert memory.add([], user_id="alice") == []
    assert memory.add("  ", user_id="alice") == []


def test_a_long_turn_becomes_several_facts_of_one_source(make):
    memory = make(max_fact_chars=40)
    facts = memory.add("This is one sentence. " * 4, user_id="alice")
    assert len(facts) > 1
    assert len({f.source for f in facts}) == 1 and facts[0].source
    assert all(len(f.text) <= 40 for f in facts)


def test_bad_metadata_stores_nothing(memory):
    with pytest.raises(ConfigurationError):
        memory.add(["one", "two"], user_id="alice", metadata={"x": object()})
    assert memory.count(user_id="alice") == 0


def test_adding_calls_no_model_and_does_not_wait(make, engine):
    engine.faults.delay_s = 5.0
    memory = make()
    memory.add(["one", "two"], user_id="alice")
    assert engine.prompts == [] and engine.encodes == []


# -- infer ---------------------------------------------------------------------------------


def test_an_extractor_lists_the_facts(memory):
    seen = []

    def extractor(turns):
        seen.extend(turns)
        return ["Alice has a dog", NewFact("Alice is a nurse", metadata={"k": 1}), " "]

    facts = memory.add(
        "woof", user_id="alice", extractor=extractor, metadata={"m": 2}, timestamp=WHEN
    )
    assert [t.content for t in seen] == ["woof"]
    assert texts(facts) == ["Alice has a dog", "Alice is a nurse"]
    assert dict(facts[1].metadata) == {"m": 2, "k": 1}
    assert facts[0].event_time == WHEN


def test_the_engine_lists_the_facts(make, engine):
    engine._answer = lambda plan, text: "- Alice has a dog\n2. Alice is a nurse\n"
    facts = make().add([{"role": "user", "content": "woof"}], user_id="alice", infer=True)
    assert texts(facts) == ["Alice has a dog", "Alice is a nurse"]
    assert "user: woof" in engine.prompt_text(engine.prompts[0])


def test_the_engine_finds_nothing(make, engine):
    engine._answer = lambda plan, text: "NONE."
    assert make().add("hm", user_id="alice", infer=True) == []


@pytest.mark.parametrize("fault", ["unavailable", "empty", "raises"])
def test_failing_extraction_stores_the_messages(make, engine, fault, caplog):
    memory, extractor = make(), None
    if fault == "unavailable":
        engine.faults.unavailable = True
    elif fault == "empty":
        engine._answer = lambda plan, text: " \n"
    else:

        def extractor(turns):
            raise RuntimeError("secret words")

    facts = memory.add("the words", user_id="alice", infer=True, extractor=extractor)
    assert texts(facts) == ["the words"]
    assert "extracting facts failed" in caplog.text
    assert "words" not in caplog.text


def test_infer_without_a_model(make):
    with pytest.raises(ConfigurationError, match="extractor"):
        make(engine=None).add("x", user_id="alice", infer=True)


# -- find ----------------------------------------------------------------------------------


def test_search_finds_what_matters(memory, life):
    memory.add(life, user_id="alice")
    found = memory.search("What is my dog called?", user_id="alice", top_k=3)
    assert found[0].fact.text == life[1]
    assert len(found) <= 3
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)
    assert memory.search("  ", user_id="alice") == []


def test_search_conditions(memory):
    memory.add("green tea", user_id="alice", metadata={"topic": "food"}, timestamp=WHEN)
    memory.add("green car", user_id="alice", metadata={"topic": "cars"})
    assert texts(memory.search("green", user_id="alice", filters={"topic": "food"})) == [
        "green tea"
    ]
    assert texts(
        memory.search("green", user_id="alice", until=datetime(2024, 6, 1, tzinfo=UTC))
    ) == ["green tea"]
    assert texts(
        memory.search("green", user_id="alice", since=datetime(2024, 6, 1, tzinfo=UTC))
    ) == ["green car"]
    with pytest.raises(ConfigurationError):
        memory.search("green", user_id="alice", top_k=0)


def test_get_list_count_history(memory, life):
    facts = memory.add(life, user_id="alice", metadata={"src": "life"})
    assert memory.get(facts[0].id, user_id="alice") == facts[0]
    assert memory.get_all(user_id="alice") == facts
    assert memory.get_all(user_id="alice", limit=2, offset=1) == facts[1:3]
    assert memory.get_all(user_id="alice", filters={"src": "other"}) == []
    assert memory.count(user_id="alice") == len(life)
    memory.update(facts[0].id, text="I moved to Porto", user_id="alice")
    memory.delete(facts[0].id, user_id="alice")
    kinds = [e.kind for e in memory.history(facts[0].id, user_id="alice")]
    assert kinds == [FactEventKind.ADD, FactEventKind.UPDATE, FactEventKind.DELETE]
    with pytest.raises(NotFoundError):
        memory.get(facts[0].id, user_id="alice")


# -- change --------------------------------------------------------------------------------


def test_update_and_delete_take_effect_in_search(memory, life):
    facts = memory.add(life, user_id="alice")
    memory.search("dog", user_id="alice")
    new = memory.update(facts[1].id, text="My cat is called Salt", user_id="alice")
    assert new.version == 2
    assert memory.search("cat Salt", user_id="alice", top_k=1)[0].fact == new
    memory.delete(facts[1].id, user_id="alice")
    assert facts[1].id not in {s.fact.id for s in memory.search("cat Salt dog", user_id="alice")}


def test_delete_all_is_one_namespace(memory):
    memory.add(["a", "b"], user_id="alice")
    memory.add("c", user_id="alice", agent_id="tutor")
    memory.add("d", user_id="bob")
    assert memory.delete_all(user_id="alice", agent_id="tutor") == 1
    assert memory.delete_all(user_id="alice") == 2
    assert memory.count(user_id="bob") == 1


def test_hard_delete_leaves_no_text(memory, tmp_path):
    (fact,) = memory.add("zanzibarquux", user_id="alice")
    memory.search("zanzibarquux", user_id="alice")
    memory.delete(fact.id, user_id="alice", hard=True)
    memory.search("anything", user_id="alice")
    memory.close()
    left = [
        p
        for p in (tmp_path / "memory").rglob("*")
        if p.is_file() and b"zanzibarquux" in p.read_bytes()
    ]
    assert left == []


def test_reset_needs_a_word_and_erases_everybody(memory, engine):
    one = memory.add(["a", "b"], user_id="alice")
    memory.add("c", user_id="bob", agent_id="x")
    gone = memory.add("d", user_id="carol")
    memory.wait_encoded()
    memory.delete(gone[0].id, user_id="carol")
    with pytest.raises(ConfigurationError, match="confirm"):
        memory.reset()
    assert memory.reset(confirm=True) == 4
    for user in ("alice", "bob", "carol"):
        assert memory.count(user_id=user) == 0
    assert memory.search("a", user_id="alice") == []
    assert all(e.old_text is None for e in memory.history(one[0].id, user_id="alice"))
    assert len(engine.segments) == 3, "nothing but the preambles of three users"


# -- namespaces ----------------------------------------------------------------------------


def test_a_single_user_needs_no_name(memory):
    (fact,) = memory.add("I like tea")
    assert fact.namespace == Namespace(user_id=DEFAULT_USER)
    assert texts(memory.search("tea")) == ["I like tea"]
    memory.add("for the tutor", agent_id="tutor", run_id="r")
    assert memory.count() == 2 and memory.count(agent_id="tutor") == 1


def test_no_name_never_means_everybody(memory):
    memory.add("I like tea")
    memory.add("I like rum", user_id="bob")
    for call in (
        lambda: memory.search("like"),
        lambda: memory.add("x"),
        lambda: memory.get_all(agent_id="tutor"),
        lambda: memory.delete_all(),
        lambda: memory.prepare("like?"),
        lambda: memory.resolve("x", run_id="r"),
    ):
        with pytest.raises(NamespaceError, match="user_id"):
            call()
    assert texts(memory.search("like", user_id=DEFAULT_USER)) == ["I like tea"]


def test_another_process_may_bring_the_second_user(make):
    one, two = make(), make()
    one.add("I like tea")
    two.add("I like rum", user_id="bob")
    with pytest.raises(NamespaceError):
        one.search("like")


def test_a_store_with_other_users_is_recognised_at_once(make):
    make().add("x", user_id="bob")
    with pytest.raises(NamespaceError):
        make().count()


def test_multi_user_by_choice(make):
    with pytest.raises(NamespaceError):
        make(multi_user=True).add("x")
    lenient = make(multi_user=False)
    lenient.add("x", user_id="bob")
    lenient.add("y")
    assert lenient.count() == 1, "the default user's, not everybody's"


@pytest.mark.parametrize("bad", ["", "  ", 7, "x" * 300])
def test_malformed_ids(memory, bad):
    with pytest.raises(NamespaceError):
        memory.add("x", user_id=bad)


def test_users_see_nothing_of_each_other(memory, life):
    alices = memory.add(life, user_id="alice")
    memory.add("I keep bees", user_id="bob")
    assert texts(memory.search("dog Pepper rain", user_id="bob")) == ["I keep bees"]
    for call in (memory.get, memory.delete, memory.history, memory.update):
        with pytest.raises(NotFoundError):
            call(alices[0].id, user_id="bob")
    assert memory.count(user_id="alice") == len(life)


def test_user_and_agent_together_find_what_was_stored_under_both(memory):
    memory.add("tea", user_id="alice", agent_id="tutor")
    memory.add("rum", user_id="alice", agent_id="cook")
    assert texts(memory.search("tea rum", user_id="alice", agent_id="tutor")) == ["tea"]
    assert len(memory.search("tea rum", user_id="alice")) == 2


# -- handles -------------------------------------------------------------------------------


def test_handles_stand_for_facts(memory, life):
    memory.add(life, user_id="alice")
    found = memory.search("my dog", user_id="alice", top_k=3)
    handles = memory.handles("my dog", user_id="alice", top_k=3)
    assert [h.fact_id for h in handles] == [s.fact.id for s in found]
    facts = [s.fact for s in found]
    assert memory.resolve(handles, user_id="alice") == facts
    assert memory.resolve(handles[0].marker, user_id="alice") == facts[:1]
    text = "notes: " + " and ".join(map(str, [*handles, handles[0]])) + "!"
    assert memory.resolve(text, user_id="alice") == facts
    assert memory.mint(found) == handles
    assert memory.stats().handles_inert == 0


def test_handles_that_are_not_genuine_stay_inert(memory, make, tmp_path):
    (fact,) = memory.add("my secret", user_id="alice")
    (handle,) = memory.mint([fact])
    assert memory.resolve(handle, user_id="bob") == [], "another user's"
    forged = handle.marker.replace(handle.marker[-6:-3], "aaa")
    assert memory.resolve(forged, user_id="alice") == [], "forged"
    memory.update(fact.id, text="my new secret", user_id="alice")
    assert memory.resolve(handle, user_id="alice") == [], "stale"
    elsewhere = make(path=tmp_path / "other")
    assert elsewhere.resolve(handle, user_id="alice") == [], "another store's"
    assert memory.resolve("no handle at all", user_id="alice") == []
    assert memory.stats().handles_inert == 3
    assert elsewhere.stats().handles_inert == 1


def test_handles_are_not_remembered(memory, life):
    memory.add(life, user_id="alice")
    handle = memory.handles("dog", user_id="alice")[0]
    (fact,) = memory.add(f"I read {handle} today", user_id="alice")
    assert "ifs" not in fact.text
    assert "ifs" not in memory.update(fact.id, text=f"x {handle}", user_id="alice").text


# -- life ----------------------------------------------------------------------------------


def test_what_was_stored_is_there_next_time(make, life):
    one = make()
    facts = one.add(life, user_id="alice")
    handle = one.mint(facts)[0]
    one.close()
    one.close()
    two = make()
    assert two.get_all(user_id="alice") == facts
    assert two.resolve(handle, user_id="alice") == facts[:1]
    assert two.search("my dog", user_id="alice")[0].fact == facts[1]


def test_two_memories_on_one_folder(make, life):
    one, two = make(), make()
    facts = one.add(life, user_id="alice")
    assert two.search("my dog", user_id="alice")[0].fact == facts[1]
    two.delete(facts[1].id, user_id="alice")
    assert facts[1].id not in {s.fact.id for s in one.search("my dog", user_id="alice")}


def test_what_was_given_stays_open(make, engine):
    with make() as memory:
        memory.add("x")
    assert not engine.closed


def test_without_an_engine(make):
    memory = make(engine=None)
    memory.add("x")
    assert memory.search("x") and memory.engine is None
    assert not memory.wait_encoded(5.0), "at once"
    assert not memory.flush(5.0)
    assert memory.stats().pending is None
    with pytest.raises(ConfigurationError, match="engine"):
        memory.answer("x?")


def test_an_absent_engine_does_not_keep_a_memory_from_opening(make, engine):
    engine.faults.unavailable = True
    memory = make()
    memory.add("x")
    assert memory.search("x")
    assert memory.stats().pending is None
    assert not memory.wait_encoded(1.0)
    with pytest.raises(EngineUnavailable):
        memory.answer("x?")


def test_the_default_place_is_under_the_home(tmp_path, monkeypatch):
    from inferscale_sdk.config import settings

    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    try:
        with Memory(background=False) as memory:
            memory.add("x")
        folder = tmp_path / "home" / "memory"
        assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    finally:
        settings.cache_clear()


@pytest.mark.parametrize(
    "kwargs",
    [{"top_k": 0}, {"on_error": "ignore"}, {"max_fact_chars": 0}],
)
def test_bad_arguments(make, kwargs):
    with pytest.raises(ConfigurationError):
        make(**kwargs)


def test_contradicting_arguments(make, memory):
    with pytest.raises(ConfigurationError, match="path"):
        make(store=memory.store, path=None)
    with pytest.raises(ConfigurationError, match="embedder"):
        make(index=memory._parts.recaller.index)


def test_speakers_cannot_carry_handles_or_whole_texts(memory):
    marker = "[[ifs:fabc0" + "a" * 20 + "b]]"
    clean, gone = memory.add_facts(
        [NewFact("I like tea", speaker=f"Ann{marker}"), NewFact("Me too", speaker=marker)],
        user_id="alice",
    )
    assert (clean.speaker, gone.speaker) == ("Ann", None)
    long = "a" * 129
    with pytest.raises(ConfigurationError, match=r"129 characters.*128"):
        memory.add({"role": "user", "content": "I like tea", "name": long}, user_id="alice")
    (kept,) = memory.add(
        {"role": "user", "content": "I like tea", "name": long[1:]}, user_id="alice"
    )
    assert kept.speaker == long[1:]


def test_handles_in_tool_arguments_are_not_sent(memory, engine):
    marker = "[[ifs:fabc0" + "a" * 20 + "b]]"
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": f'{{"q": "{marker}"}}'},
    }
    plan = memory.prepare(
        [
            {"role": "user", "content": "Where?", "name": marker},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "user", "content": "Well?"},
        ],
        user_id="alice",
    )
    assert "ifs:" not in str(plan.messages)
    assert "ifs:" not in engine.prompt_text(plan)
