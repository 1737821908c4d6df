"""The fixed text around facts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.types import Fact
from inferscale_sdk.unicode import require_unicode

__all__ = ["DEFAULT_FRAME", "Frame"]

_LINE_FORMAT = 1
"""Grows when :meth:`Frame.line` writes the same fact in another way."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before, around and after the facts of a prompt.

    The prompt reads ``header``, one line for each fact, ``footer``; all of it inside the system
    message, behind the application's own system text. The footer matters for speed and quality:
    the tokens after the last fact are computed afresh on every request and see all facts, so the
    facts' own tokens need not be recomputed.

    Args:
        system: A system text of our own, put first when the conversation has none. ``None`` adds
            nothing.
        header: Before the facts. Ends in a line break.
        footer: After the facts.
        bullet: Starts each fact's line.

    Raises:
        ConfigurationError: ``header`` does not end in a line break, so that the first fact would
            run into it, or a text is not Unicode text.
    """

    system: str | None = None
    header: str = "These are your notes from earlier conversations with the user:\n"
    footer: str = "Use these notes when they help to answer.\n"
    bullet: str = "- "
    version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if not self.header.endswith("\n"):
            raise ConfigurationError(
                f"the frame's header {self.header!r} must end in a line break, "
                "so that the first fact starts a line of its own"
            )
        for name in ("system", "header", "footer", "bullet"):
            require_unicode(getattr(self, name) or "", f"the frame's {name}")
        parts = [_LINE_FORMAT, self.system, self.header, self.footer, self.bullet]
        digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
        object.__setattr__(self, "version", digest)

    def line(self, fact: Fact) -> str:
        r"""One fact as one line, ``- [8 May 2023] Ann: text\n``.

        Date and speaker are left out when unknown. A fact is data: line breaks inside it are
        folded, so that its text can never look like two facts or like the end of the notes.
        """
        date = f"[{_date(fact.event_time)}] " if fact.event_time else ""
        speaker = f"{_fold(fact.speaker)}: " if fact.speaker else ""
        return f"{self.bullet}{date}{speaker}{_fold(fact.text)}\n"


def _fold(text: str) -> str:
    # Not a regular expression, whose time would grow with the square of a run of spaces.
    return " ".join(part for line in text.splitlines() if (part := line.strip()))


def _date(when: datetime) -> str:
    # Not strftime: month names must not follow the process's locale, since tokens are keys.
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}"


DEFAULT_FRAME = Frame()
