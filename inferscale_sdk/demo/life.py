"""Two invented people who talk to an assistant over a year. Written for this project."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Message

__all__ = ["Life", "Question", "Session", "Turn", "life_users", "load_life"]

# A spoken turn takes about this long; it only has to put the turns of a session in order.
_TURN_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. ``id`` is the session's id and the turn's number, e.g. ``s03t07``."""

    id: str
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """One sitting. ``started_at`` is time-zone aware."""

    id: str
    started_at: datetime
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask, the answer in as few words as will do, and the turns that say it."""

    question: str
    answer: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """A person, everything they said, and questions about it."""

    user_id: str
    name: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns in the order in which they were said."""
        return tuple(turn for session in self.sessions for turn in session.turns)

    def messages(self) -> list[Message]:
        """The turns as timed messages."""
        return [
            Message(
                role=turn.role,
                content=turn.text,
                timestamp=session.started_at + timedelta(seconds=_TURN_SECONDS * i),
            )
            for session in self.sessions
            for i, turn in enumerate(session.turns)
        ]

    def digest(self) -> str:
        """Changes when anything that was said changes; 16 hex digits."""
        said = json.dumps([[t.id, t.role, t.text] for t in self.turns], ensure_ascii=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]


def life_users() -> list[str]:
    """Whose lives are there."""
    return [life["user_id"] for life in _document()["lives"]]


def load_life(user_id: str = "nora") -> Life:
    """The life of ``user_id``.

    Raises:
        ConfigurationError: There is no such person.
    """
    for life in _document()["lives"]:
        if life["user_id"] == user_id:
            return _life(life)
    raise ConfigurationError(f"no sample life of {user_id!r}; there are: {', '.join(life_users())}")


@cache
def _document() -> dict[str, Any]:
    text = files("inferscale_sdk.demo").joinpath("life.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def _life(raw: dict[str, Any]) -> Life:
    return Life(
        user_id=raw["user_id"],
        name=raw["name"],
        sessions=tuple(
            Session(
                id=session["id"],
                started_at=datetime.fromisoformat(session["date"]),
                turns=tuple(Turn(**turn) for turn in session["turns"]),
            )
            for session in raw["sessions"]
        ),
        questions=tuple(
            Question(q["question"], q["answer"], tuple(q["evidence"])) for q in raw["questions"]
        ),
    )
