"""Facts and events as rows, and the checks a fact passes before it becomes one."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.sqlite.times import from_us, to_us
from inferscale_sdk.types import Fact, FactEvent, FactEventKind, Namespace, NewFact
from inferscale_sdk.unicode import require_unicode

__all__ = [
    "EVENT_COLUMNS",
    "FACT_COLUMNS",
    "as_ids",
    "check_fact",
    "check_text",
    "dump_metadata",
    "load_event",
    "load_fact",
    "load_time",
    "new_fact_id",
    "optional_us",
]

_NAMES = (
    *("id", "version", "text", "app_id", "user_id", "agent_id", "run_id"),
    *("conversation_id", "position", "created_us", "updated_us", "event_us"),
    *("speaker", "source", "metadata", "deleted_us"),
)
FACT_COLUMNS = ", ".join(f"fact.{name}" for name in _NAMES)
EVENT_COLUMNS = (
    "seq, kind, fact_id, version, app_id, user_id, agent_id, run_id, at_us, old_text, new_text"
)

MAX_SPEAKER_CHARS = 128
MAX_NAME_CHARS = 4096
"""Of a fact's source and conversation."""
MAX_METADATA_CHARS = 1 << 20
_ID_BYTES = 15  # 120 bits, 24 characters of base32 without padding
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def new_fact_id() -> str:
    """``f`` and 24 characters of lower-case base32, letters and digits mixed, 120 random bits."""
    while True:
        body = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
        # An id must not look like a word or a number where it stands in prompt text.
        if any(c.isdigit() for c in body) and any(c.isalpha() for c in body):
            return "f" + body


def check_fact(fact: NewFact, max_chars: int) -> None:
    """Refuse what could not be stored and given back unchanged.

    Raises:
        ConfigurationError: A field has the wrong type or holds text that is not Unicode, the text
            or the speaker is too long, the text is blank, or a time is naive.
    """
    if not isinstance(fact, NewFact):
        raise ConfigurationError(f"facts are NewFact values, not {type(fact).__name__}")
    check_text(fact.text, max_chars)
    for name in ("conversation_id", "speaker", "source"):
        value = getattr(fact, name)
        if value is not None or name == "conversation_id":
            _check_string(value, name)
    for name in ("conversation_id", "source"):
        value = getattr(fact, name) or ""
        if len(value) > MAX_NAME_CHARS:
            raise ConfigurationError(
                f"{name}={value[:40]!r}… has {len(value)} characters, a fact takes at most "
                f"{MAX_NAME_CHARS}; shorten it"
            )
    _check_speaker(fact.speaker)


def _check_speaker(speaker: str | None) -> None:
    # It stands in the prompt before the text, so the text's own limit must not be its way round.
    if speaker is not None and len(speaker) > MAX_SPEAKER_CHARS:
        raise ConfigurationError(
            f"the speaker {speaker[:40]!r}… has {len(speaker)} characters, a fact takes at most "
            f"{MAX_SPEAKER_CHARS}; shorten the name"
        )


def check_text(text: str, max_chars: int) -> None:
    """A fact's text.

    Raises:
        ConfigurationError: It is blank, longer than ``max_chars`` characters, or not Unicode text.
    """
    _check_string(text, "text")
    if not text.strip():
        raise ConfigurationError(f"the text {text!r} of a fact is blank; leave the fact out")
    if len(text) > max_chars:
        raise ConfigurationError(
            f"the text {text[:40]!r}… of a fact has {len(text)} characters, the store takes at "
            f"most {max_chars}; cut it into several facts or raise max_fact_chars"
        )


def _check_string(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r} is a {type(value).__name__}, not a string")
    require_unicode(value, name)


def dump_metadata(metadata: Mapping[str, Any]) -> str:
    """Canonical JSON text of metadata: equal metadata give equal text.

    Raises:
        ConfigurationError: It would not come back unchanged from JSON.
    """
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata={metadata!r} is not a mapping")
    plain = dict(metadata)
    try:
        text = json.dumps(
            plain, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        text.encode()
        same = json.loads(text) == plain
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"metadata is not JSON ({error}); use strings, finite numbers, booleans, None, lists "
            "and dicts with string keys"
        ) from None
    if not same:
        raise ConfigurationError(
            f"metadata {plain!r} would change on its way through JSON; "
            "use lists instead of tuples and strings as keys"
        )
    if len(text) > MAX_METADATA_CHARS:
        raise ConfigurationError(
            f"metadata has {len(text)} characters as JSON, a fact takes at most "
            f"{MAX_METADATA_CHARS}; keep large values elsewhere and refer to them"
        )
    if _ESCAPED_NUL.search(text):
        raise ConfigurationError("metadata holds a NUL character, which no filter could match")
    return text


def optional_us(value: datetime | None, what: str) -> int | None:
    """:func:`~inferscale_sdk.sqlite.times.to_us`, ``None`` for ``None``."""
    return None if value is None else to_us(value, what)


def load_time(value: int | None) -> datetime | None:
    """The time in UTC, ``None`` for ``None``."""
    return None if value is None else from_us(value)


def load_fact(row: Sequence[Any]) -> Fact:
    """A row of :data:`FACT_COLUMNS`."""
    return Fact(
        id=row[0],
        version=row[1],
        text=row[2],
        namespace=_namespace(row[3:7]),
        conversation_id=row[7],
        position=row[8],
        created_at=from_us(row[9]),
        updated_at=from_us(row[10]),
        event_time=load_time(row[11]),
        speaker=row[12],
        source=row[13],
        metadata=json.loads(row[14]),
        deleted_at=load_time(row[15]),
    )


def load_event(row: Sequence[Any]) -> FactEvent:
    """A row of :data:`EVENT_COLUMNS`."""
    return FactEvent(
        seq=row[0],
        kind=FactEventKind(row[1]),
        fact_id=row[2],
        version=row[3],
        namespace=_namespace(row[4:8]),
        at=from_us(row[8]),
        old_text=row[9],
        new_text=row[10],
    )


def _namespace(columns: Sequence[str | None]) -> Namespace:
    app_id, user_id, agent_id, run_id = columns
    return Namespace(app_id=app_id, user_id=user_id, agent_id=agent_id, run_id=run_id)


def as_ids(values: Sequence[str], what: str = "fact_ids") -> str:
    """Ids or keys as one JSON parameter for ``json_each``: no limit on how many.

    Raises:
        ConfigurationError: A bare string was given where a sequence is meant.
    """
    if isinstance(values, str):
        raise ConfigurationError(f"{what}={values!r} is one string; pass a list")
    return json.dumps(list(values))
