"""From token ids to text, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

_INCOMPLETE = "\ufffd"


class TextStream:
    """Turns tokens into text as they come, and watches for stop strings.

    A character may be spread over several tokens, and a stop string over several pieces of text:
    both are held back until they are whole, or known not to become so.

    Args:
        decode: Text of token ids.
        stop: Stop strings; the text ends before the first that appears.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(string for string in stop if string)
        self._ids: list[int] = []
        # Tokens from ``_anchor`` on are decoded together, since a token's text depends on the ones
        # before it; those up to ``_read`` have been given out.
        self._anchor = 0
        self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is certain now."""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._anchor : self._read])
        text = self._decode(self._ids[self._anchor :])
        if len(text) <= len(known) or text.endswith(_INCOMPLETE):
            return ""
        self._anchor, self._read = self._read, len(self._ids)
        return self._give(text[len(known) :])

    def finish(self) -> str:
        """No more tokens come; returns what was held back."""
        if self.stopped:
            return ""
        known = self._decode(self._ids[self._anchor : self._read])
        rest = self._decode(self._ids[self._anchor :])[len(known) :]
        self._anchor = self._read = len(self._ids)
        text = self._give(rest)
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _give(self, text: str) -> str:
        self._held += text
        found = [at for string in self._stop if (at := self._held.find(string)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, string) for string in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of ``text`` that begins ``string``."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if string.startswith(text[-length:]):
            return length
    return 0
