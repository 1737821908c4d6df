"""Which stored segments may stand for the start of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.protocol import Reason

__all__ = ["Known", "Match", "Wanted", "matching_prefix"]


class Wanted(Protocol):
    """A segment as a request names it."""

    @property
    def key(self) -> str:
        """Content address."""

    @property
    def n_tokens(self) -> int:
        """Prompt tokens it covers."""


class Known(Protocol):
    """A segment as the store has it."""

    @property
    def n_tokens(self) -> int:
        """Tokens in it."""

    @property
    def token_digest(self) -> str:
        """Digest of their ids."""


@dataclass(frozen=True, slots=True)
class Match:
    """How far stored segments cover a prompt.

    Args:
        end: Tokens covered without a gap from position 0.
        missing: Keys that are not to be had, also behind the first gap.
        reason: Why not all of them cover it.
    """

    end: int
    missing: tuple[str, ...]
    reason: Reason


def matching_prefix(
    segments: Sequence[Wanted],
    prompt: Sequence[int],
    lookup: Callable[[str], Known | None],
    why_absent: Callable[[str], Reason],
    *,
    reason: Reason = Reason.OK,
) -> Match:
    """The longest run of segments from position 0 whose own tokens are the prompt's.

    Args:
        segments: Contiguous from position 0, in prompt order.
        prompt: Token ids.
        lookup: The stored segment under a key, if there is one.
        why_absent: Asked for a key that ``lookup`` does not know.
        reason: What is known to be wrong already; absence does not replace it, another text does.
    """
    position, end = 0, 0
    missing: list[str] = []
    broken = False
    for segment in segments:
        known = lookup(segment.key)
        stop = position + segment.n_tokens
        if known is None:
            missing.append(segment.key)
            reason = reason or why_absent(segment.key)
            broken = True
        elif not broken:
            own = token_digest(prompt[position:stop])
            if (known.n_tokens, known.token_digest) == (segment.n_tokens, own):
                end = stop
            else:
                reason = Reason.TOKEN_MISMATCH
                broken = True
        position = stop
    return Match(end, tuple(missing), reason)
