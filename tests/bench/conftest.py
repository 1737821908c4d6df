"""The sample life in LoCoMo's shape, and the bundled model ready to score."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from inferscale_sdk.demo.life import load_life


@pytest.fixture(scope="session")
def life_file(tmp_path_factory):
    """One conversation: the sessions of Nora's life, and the questions about it."""
    life = load_life("nora")
    talk, names = {"speaker_a": life.name, "speaker_b": "Assistant"}, {}
    for number, session in enumerate(life.sessions, start=1):
        when = session.started_at
        talk[f"session_{number}_date_time"] = (
            f"{when:%I:%M %p} on {when.day} {when:%B}, {when.year}"
        )
        talk[f"session_{number}"] = []
        for place, turn in enumerate(session.turns, start=1):
            names[turn.id] = f"D{number}:{place}"
            speaker = life.name if turn.role == "user" else "Assistant"
            talk[f"session_{number}"].append(
                {"speaker": speaker, "dia_id": names[turn.id], "text": turn.text}
            )
    questions = [
        {
            "question": question.question,
            "answer": question.answer,
            "evidence": [names[turn] for turn in question.evidence],
            "category": 4,
        }
        for question in life.questions
    ]
    entry = {"sample_id": "nora", "conversation": talk, "observation": {}, "qa": questions}
    path = tmp_path_factory.mktemp("life") / "nora.json"
    path.write_text(json.dumps([entry]))
    return path


class Silent:
    @contextmanager
    def progress(self, what, total):
        yield lambda done: None


@pytest.fixture
def silent():
    return Silent()
