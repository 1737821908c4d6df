"""Fact handles: short signed references that ride through prompts in place of the text.

A marker reads ``[[ifs:<fact id>0<mac><version>]]``. ``0`` ends the id (the id's base32 alphabet
has none), the MAC is 20 letters and the version follows in letters. Only letters and digits stand
between the brackets, it starts with a letter and has no long run of digits, so that prompt
templates (f-string, mustache, jinja2, XML), JSON and redaction of personal data all let it pass.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass

from inferscale_sdk.errors import HandleError
from inferscale_sdk.types import Fact, FactHandle

__all__ = ["HandleMatch", "HandleMinter", "strip_handles"]

_MAC_BYTES = 10
_FACT_ID = re.compile(r"f[a-z2-7]{1,64}")
_MARKER = re.compile(r"\[\[ifs:(f[a-z2-7]{1,64})0([a-p]{20})([a-p]{1,8})\]\]")
# Whatever looks like a marker is kept from the model, well formed or not: ``[[ifs:``, at most this
# many characters that are no brackets and no space, ``]]``.
_MAX_INSIDE = 256
_PIECES = re.compile(r"[\[\]]|[^\[\]]+")
_ALPHABET = "abcdefghijklmnop"


@dataclass(frozen=True, slots=True)
class HandleMatch:
    """A well-formed marker found in a text. It is not yet known to be genuine.

    Args:
        marker: The text, brackets included.
        fact_id: The fact it names.
        version: The version it names.
        start: Index of its first character.
        stop: Index behind its last.
    """

    marker: str
    fact_id: str
    version: int
    start: int
    stop: int


class HandleMinter:
    """Mints and checks the handles of one fact store.

    Args:
        secret: The store's secret (``FactStore.secret``). Handles of another store do not verify.

    Raises:
        HandleError: The secret is shorter than 16 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise HandleError(f"the secret has {len(secret)} bytes, at least 16 are needed")
        self._key = hmac.new(secret, b"ifs-handle-v1", hashlib.sha256).digest()

    def mint(self, fact: Fact) -> FactHandle:
        """The handle of this very version: another text, owner or version gives another marker.

        Raises:
            HandleError: The fact's id is not ``f`` and lower-case base32.
        """
        if not _FACT_ID.fullmatch(fact.id):
            raise HandleError(
                f"fact id {fact.id!r} cannot ride in a handle; ids are 'f' and lower-case base32"
            )
        marker = f"[[ifs:{fact.id}0{self._mac(fact)}{_letters(fact.version)}]]"
        return FactHandle(fact_id=fact.id, version=fact.version, marker=marker)

    def find(self, text: str) -> list[HandleMatch]:
        """Every well-formed marker in ``text``, in order. Genuine or not: :meth:`verify` tells."""
        return [
            HandleMatch(m[0], m[1], _number(m[3]), m.start(), m.end())
            for m in _MARKER.finditer(text)
        ]

    def verify(self, marker: str, fact: Fact) -> bool:
        """Whether ``marker`` was minted by this store for exactly this version of ``fact``."""
        match = _MARKER.fullmatch(marker)
        if match is None or match[1] != fact.id or _number(match[3]) != fact.version:
            return False
        return hmac.compare_digest(match[2], self._mac(fact))

    def strip(self, text: str) -> str:
        """See :func:`strip_handles`."""
        return strip_handles(text)

    def _mac(self, fact: Fact) -> str:
        text = hashlib.sha256(fact.text.encode()).hexdigest()
        body = json.dumps([fact.id, fact.version, text, fact.namespace.canonical()])
        digest = hmac.new(self._key, body.encode(), hashlib.sha256).digest()[:_MAC_BYTES]
        return "".join(_ALPHABET[byte >> 4] + _ALPHABET[byte & 15] for byte in digest)


def strip_handles(text: str) -> str:
    """``text`` without markers, whoever wrote them; a line that held nothing else goes too."""
    if "[[ifs:" not in text:
        return text
    kept = []
    for line in text.split("\n"):
        bare = _without_markers(line) if "[[ifs:" in line else line
        if bare == line or bare.strip(" \t-*•"):
            kept.append(bare if bare == line else re.sub(r"[ \t]{2,}", " ", bare).rstrip(" \t"))
    return "\n".join(kept)


def _without_markers(line: str) -> str:
    """``line`` without markers, in one pass.

    Taking one out can bring another together, as in ``[[ifs:[[ifs:a]]b]]``. What is kept is
    therefore a stack without markers: only a ``]`` can complete one, at its top.
    """
    kept: list[str | _Words] = []  # brackets, and what stands between them
    for piece in _PIECES.findall(line):
        if piece == "]":
            kept.append(piece)
            if _ends_in_marker(kept):
                del kept[-5:]
        elif piece == "[":
            kept.append(piece)
        elif kept and isinstance(kept[-1], _Words):
            kept[-1].add(piece)
        else:
            kept.append(_Words([piece], len(piece)))
    return "".join(item if isinstance(item, str) else "".join(item.parts) for item in kept)


@dataclass(slots=True)
class _Words:
    """Text without brackets, in the parts it came in, and its length."""

    parts: list[str]
    size: int

    def add(self, part: str) -> None:
        self.parts.append(part)
        self.size += len(part)


def _ends_in_marker(kept: list[str | _Words]) -> bool:
    if len(kept) < 5 or kept[-2] != "]" or not kept[-5] == kept[-4] == "[":
        return False
    words = kept[-3]
    if isinstance(words, str) or words.size > len("ifs:") + _MAX_INSIDE:
        return False
    inside = "".join(words.parts)
    return inside.startswith("ifs:") and not any(map(str.isspace, inside))


def _letters(number: int) -> str:
    """A number in base 16 with the digits a to p."""
    return "".join(_ALPHABET[int(digit, 16)] for digit in f"{number:x}")


def _number(letters: str) -> int:
    return int("".join(f"{_ALPHABET.index(letter):x}" for letter in letters), 16)
