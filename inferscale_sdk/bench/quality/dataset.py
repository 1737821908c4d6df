"""LoCoMo, and any file in its shape: facts to remember, and questions about them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias

from inferscale_sdk.errors import ConfigurationError, ImportFormatError
from inferscale_sdk.types import NewFact

__all__ = ["CATEGORIES", "Conversation", "DataSet", "Question", "Unit", "load_locomo"]

Unit: TypeAlias = Literal["observations", "pairs", "turns"]

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
"""Categories that have golden answers; 5, adversarial, has none."""

_SESSION = re.compile(r"session_(\d+)")
# "8:18 pm on 6 July, 2023". Evidence is written in many ways: "D8:6; D9:17", "D30:05".
_TIME = re.compile(r"(\d+):(\d+)\s*([ap]m)\s+on\s+(\d+)\s+([A-Z][a-z]+),?\s+(\d{4})", re.IGNORECASE)
_TURN = re.compile(r"D(\d+):(\d+)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Args:
        id: Conversation and number, e.g. ``conv-26/3``.
        text: The question.
        answer: The golden answer.
        category: See :data:`CATEGORIES`.
        evidence: Turns that hold the answer, e.g. ``D1:3``; empty where none could be read.
    """

    id: str
    text: str
    answer: str
    category: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What two people said over months.

    Args:
        id: Its name in the file.
        facts: In the order they were said; ``source`` names the turn, ``metadata`` the session.
        questions: Those with a golden answer.
        summaries: What annotators made of each session, as far as the file has it.
    """

    id: str
    facts: tuple[NewFact, ...]
    questions: tuple[Question, ...]
    summaries: Mapping[int, NewFact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """A file of conversations.

    Args:
        digest: Of the file and the unit of facts.
        conversations: In the file's order.
    """

    digest: str
    conversations: tuple[Conversation, ...]


def load_locomo(path: Path, unit: Unit = "observations") -> DataSet:
    """Read a file in LoCoMo's shape.

    Args:
        path: The file.
        unit: What counts as a fact: what annotators noted down, two such notes that follow one
            another in a session, or what was said.

    Raises:
        ConfigurationError: There is no such file, or no such unit.
        ImportFormatError: It is something else.
    """
    if unit not in _UNITS:
        raise ConfigurationError(f"unit={unit!r} must be one of {', '.join(_UNITS)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--data {str(path)!r} cannot be read: {error}") from error
    try:
        entries = json.loads(data)
        conversations = tuple(_conversation(entry, unit) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImportFormatError(
            f"{path} is not in LoCoMo's shape ({type(error).__name__}: {error}); expected a list "
            "of objects with sample_id, conversation, observation and qa"
        ) from error
    digest = hashlib.blake2b(data, digest_size=8, person=unit.encode()).hexdigest()
    return DataSet(digest, conversations)


def _conversation(entry: Mapping[str, Any], unit: Unit) -> Conversation:
    name = str(entry["sample_id"])
    facts, questions = tuple(_UNITS[unit](entry)), tuple(_questions(name, entry["qa"]))
    return Conversation(name, facts, questions, dict(_summaries(entry)))


def _sessions(talk: Mapping[str, Any]) -> Iterator[tuple[int, Sequence[Any], datetime | None]]:
    """Sessions that exist: there are dates of some that do not."""
    numbers = sorted(int(match[1]) for key in talk if (match := _SESSION.fullmatch(key)))
    for number in numbers:
        when = str(talk.get(f"session_{number}_date_time", ""))
        yield number, talk[f"session_{number}"], _time(when)


def _time(text: str) -> datetime | None:
    match = _TIME.search(text)
    if match is None:
        return None
    hour, minute, half, day, month, year = match.groups()
    # Not strptime: month names must not follow the process's locale.
    hours = int(hour) % 12 + (12 if half.lower() == "pm" else 0)
    number = _MONTHS.index(month[:3].lower()) + 1
    return datetime(int(year), number, int(day), hours, int(minute), tzinfo=UTC)


def _observations(entry: Mapping[str, Any]) -> Iterator[NewFact]:
    noted = entry["observation"]
    for number, _, when in _sessions(entry["conversation"]):
        found: list[tuple[int, str, str]] = []
        for said in noted.get(f"session_{number}_observation", {}).values():
            for text, source in said:
                turns = _turn_ids(json.dumps(source))
                first = int(turns[0].split(":")[1]) if turns else 0
                found.append((first, text, " ".join(turns)))
        # What annotators noted about each speaker, put back into the order it was said.
        for _, text, source in sorted(found, key=lambda item: item[0]):
            yield NewFact(
                text, source=source or None, event_time=when, metadata={"session": number}
            )


def _pairs(entry: Mapping[str, Any]) -> Iterator[NewFact]:
    for _, group in groupby(_observations(entry), lambda fact: fact.metadata["session"]):
        facts = list(group)
        for first, second in zip_longest(facts[::2], facts[1::2]):
            if second is None:
                yield first
                continue
            sources = dict.fromkeys(f"{first.source or ''} {second.source or ''}".split())
            text = f"{first.text} {second.text}"
            yield replace(first, text=text, source=" ".join(sources) or None)


def _summaries(entry: Mapping[str, Any]) -> Iterator[tuple[int, NewFact]]:
    told = entry.get("session_summary", {})
    for number, _, when in _sessions(entry["conversation"]):
        if text := str(told.get(f"session_{number}_summary", "")).strip():
            yield number, NewFact(text, event_time=when, metadata={"session": number})


def _turns(entry: Mapping[str, Any]) -> Iterator[NewFact]:
    for number, turns, when in _sessions(entry["conversation"]):
        for turn in turns:
            text = str(turn.get("text", "")).strip()
            # What the annotators searched to find the picture ("query") nobody said.
            if caption := turn.get("blip_caption"):
                text = f"{text} (shares a photo: {caption})".strip()
            if text:
                yield NewFact(
                    text,
                    speaker=turn["speaker"],
                    source=" ".join(_turn_ids(turn["dia_id"])) or None,
                    event_time=when,
                    metadata={"session": number},
                )


def _questions(name: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Question]:
    for number, entry in enumerate(entries):
        category = int(entry["category"])
        if category not in CATEGORIES or "answer" not in entry:
            continue
        # Some answers are numbers.
        answer = str(entry["answer"]).strip()
        if answer:
            evidence = _turn_ids(json.dumps(entry.get("evidence", [])))
            yield Question(f"{name}/{number}", str(entry["question"]), answer, category, evidence)


def _turn_ids(text: str) -> tuple[str, ...]:
    found = (f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text))
    return tuple(dict.fromkeys(found))


_UNITS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[NewFact]]] = {
    "observations": _observations,
    "pairs": _pairs,
    "turns": _turns,
}
