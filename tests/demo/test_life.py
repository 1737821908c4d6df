from collections import Counter

import pytest

from inferscale_sdk.demo.life import life_users, load_life
from inferscale_sdk.errors import ConfigurationError


def test_the_sample_life_is_large_enough_to_choose_from():
    nora = load_life("nora")

    assert len(nora.turns) >= 130
    assert len(nora.sessions) >= 10
    assert len(nora.questions) == 8
    assert len(load_life("jonas").turns) >= 15


@pytest.mark.parametrize("user_id", life_users())
def test_ids_are_unique_texts_differ_and_time_runs_forward(user_id):
    life = load_life(user_id)

    assert max(Counter(turn.id for turn in life.turns).values()) == 1
    assert max(Counter(turn.text for turn in life.turns).values()) == 1
    times = [message.timestamp for message in life.messages()]
    assert times == sorted(times)
    assert all(time.tzinfo is not None for time in times)
    assert {turn.role for turn in life.turns} == {"user", "assistant"}


@pytest.mark.parametrize("user_id", life_users())
def test_every_question_can_be_answered_from_its_evidence(user_id):
    life = load_life(user_id)
    said = {turn.id: turn.text.lower() for turn in life.turns}

    for question in life.questions:
        evidence = " ".join(said[turn_id] for turn_id in question.evidence)
        asked_and_said = evidence + question.question.lower()
        # "her black jacket" is said as "my black jacket".
        words = question.answer.lower().replace(",", " ").split()
        known = [word for word in words if word.strip(".,") in asked_and_said.replace(",", " ")]
        assert len(known) >= len(words) * 0.7, (question.answer, evidence)


def test_two_people_share_words_but_no_sentence():
    nora, jonas = load_life("nora"), load_life("jonas")

    assert any("Biscuit" in turn.text for turn in nora.turns)
    assert any("Biscuit" in turn.text for turn in jonas.turns)
    assert not {turn.text for turn in nora.turns} & {turn.text for turn in jonas.turns}


def test_digest_follows_what_was_said():
    assert load_life("nora").digest() == load_life("nora").digest()
    assert load_life("nora").digest() != load_life("jonas").digest()


def test_an_unknown_person_is_named_with_those_who_are_there():
    with pytest.raises(ConfigurationError, match=r"'zoe'.*nora, jonas"):
        load_life("zoe")
