"""What comes back from the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inferscale_sdk.protocol import EncodeAnswer, InjectAnswer

__all__ = ["Computed", "Event", "Failed", "Finished", "Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of an answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer.

    Args:
        reason: ``stop`` or ``length``.
        n_tokens: Tokens generated, the one that ended the answer included.
        injection: What became of the segments; ``None`` if the prompt had none.
    """

    reason: str
    n_tokens: int
    injection: InjectAnswer | None


@dataclass(frozen=True, slots=True)
class Computed:
    """The last event of an encoding."""

    answer: EncodeAnswer


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that went wrong."""

    error: Exception


Event: TypeAlias = Text | Finished | Computed | Failed
