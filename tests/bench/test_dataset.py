from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from inferscale_sdk.bench.quality.dataset import load_locomo
from inferscale_sdk.errors import ConfigurationError, ImportFormatError

TALK = {
    "sample_id": "talk-1",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Ben",
        "session_1_date_time": "12:05 am on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a boat."},
            {
                "speaker": "Ben",
                "dia_id": "D1:2",
                "text": "Look!",
                "blip_caption": "a red boat",
                "query": "boat red harbour",
            },
        ],
        # A date without a session, as in the real file.
        "session_2_date_time": "1:00 pm on 9 May, 2023",
        "session_10_date_time": "1:56 pm on 2 June, 2023",
        "session_10": [{"speaker": "Ann", "dia_id": "D10:1", "text": "It sank."}],
    },
    "observation": {
        "session_1_observation": {
            "Ann": [["Ann bought a boat.", "D1:1"]],
            "Ben": [["Ben has a picture of a boat.", ["D1:2", "D1:1"]]],
        },
        "session_10_observation": {"Ann": [["Ann's boat sank.", "D10:1"]]},
    },
    "qa": [
        {"question": "How many?", "answer": 1, "evidence": ["D1:01; D10:1"], "category": 1},
        {"question": "Why?", "adversarial_answer": "rain", "evidence": ["D1:1"], "category": 5},
        {"question": "When?", "answer": "8 May", "evidence": ["D"], "category": 2},
    ],
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([TALK]))
    return path


def test_observations_are_facts_in_the_order_they_were_said(path):
    (talk,) = load_locomo(path).conversations
    assert [fact.text for fact in talk.facts] == [
        "Ann bought a boat.",
        "Ben has a picture of a boat.",
        "Ann's boat sank.",
    ]
    assert [fact.source for fact in talk.facts] == ["D1:1", "D1:2 D1:1", "D10:1"]
    assert [fact.metadata["session"] for fact in talk.facts] == [1, 1, 10]
    assert talk.facts[0].event_time == datetime(2023, 5, 8, 0, 5, tzinfo=UTC)
    assert talk.facts[2].event_time == datetime(2023, 6, 2, 13, 56, tzinfo=UTC)


def test_turns_are_facts_with_their_speaker_and_without_annotators_queries(path):
    (talk,) = load_locomo(path, "turns").conversations
    assert [(fact.speaker, fact.text) for fact in talk.facts] == [
        ("Ann", "I bought a boat."),
        ("Ben", "Look! (shares a photo: a red boat)"),
        ("Ann", "It sank."),
    ]


def test_questions_without_a_golden_answer_are_left_out_and_numbers_are_text(path):
    (talk,) = load_locomo(path).conversations
    assert [(q.id, q.answer, q.category, q.evidence) for q in talk.questions] == [
        ("talk-1/0", "1", 1, ("D1:1", "D10:1")),
        ("talk-1/2", "8 May", 2, ()),
    ]


def test_facts_of_another_unit_are_other_data(path):
    assert load_locomo(path).digest != load_locomo(path, "turns").digest


def test_bad_input_is_named(path, tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_locomo(tmp_path / "nowhere.json")
    with pytest.raises(ConfigurationError, match="words"):
        load_locomo(path, "words")
    for text in ("{", "[1]", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(ImportFormatError, match="talks"):
            load_locomo(path)


def test_pairs_are_two_observations_of_one_session(path):
    (talk,) = load_locomo(path, "pairs").conversations
    assert [(fact.text, fact.source, fact.metadata) for fact in talk.facts] == [
        ("Ann bought a boat. Ben has a picture of a boat.", "D1:1 D1:2", {"session": 1}),
        ("Ann's boat sank.", "D10:1", {"session": 10}),
    ]


def test_summaries_are_there_where_the_file_has_them(path, tmp_path):
    (talk,) = load_locomo(path).conversations
    assert talk.summaries == {}
    told = {"session_1_summary": " A boat was bought. ", "session_2_summary": "", "other": 1}
    more = tmp_path / "summed-up.json"
    more.write_text(json.dumps([TALK | {"session_summary": told}]))
    (talk,) = load_locomo(more).conversations
    assert {number: fact.text for number, fact in talk.summaries.items()} == {
        1: "A boat was bought."
    }
    assert talk.summaries[1].event_time == datetime(2023, 5, 8, 0, 5, tzinfo=UTC)
