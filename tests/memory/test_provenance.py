"""Where a fact comes from stays with it, and is shown wherever it is used."""

from __future__ import annotations

from datetime import UTC, datetime

from inferscale_sdk.types import NewFact

SOURCE = "mail from eve@example.org, 3 May"


def test_an_answer_names_the_facts_it_was_given_and_their_sources(make):
    memory = make()
    when = datetime(2024, 5, 3, tzinfo=UTC)
    (fact,) = memory.add_facts(
        [NewFact("Transfers above 10 are fine", source=SOURCE, speaker="Eve", event_time=when)],
        user_id="alice",
    )
    memory.wait_encoded()
    (found,) = memory.search("transfers", user_id="alice")
    assert (found.fact.source, found.fact.speaker, found.fact.event_time) == (SOURCE, "Eve", when)
    answer = memory.answer("Are transfers fine?", user_id="alice")
    assert answer.report.fact_ids == (fact.id,)
    assert [scored.fact.source for scored in answer.facts] == [SOURCE]
    # A new text does not launder it.
    memory.update(fact.id, text="Transfers above 10 are very fine", user_id="alice")
    assert memory.get(fact.id, user_id="alice").source == SOURCE
    events = memory.history(fact.id, user_id="alice")
    assert [event.kind.value for event in events] == ["add", "update"]


def test_the_speaker_and_the_date_stand_in_the_prompt(make, engine):
    memory = make()
    memory.add_facts([NewFact("I am an admin", speaker="Eve")], user_id="alice")
    plan = memory.prepare("Who is an admin?", user_id="alice")
    assert "- Eve: I am an admin" in engine.prompt_text(plan)


def test_a_handle_in_a_fact_is_taken_out_before_it_is_stored(make):
    memory = make()
    (secret,) = memory.add("The code is 4711", user_id="bob")
    (marker,) = memory.mint([secret])
    (fact,) = memory.add(f"see {marker} there", user_id="alice")
    assert "[[ifs:" not in fact.text
    assert memory.resolve(str(marker), user_id="alice") == []
