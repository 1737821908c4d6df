"""What encoding needs of a planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from inferscale_sdk.prompt.base import EncodePlan, Reading
from inferscale_sdk.types import Fact, Message

__all__ = ["EncodePlanner"]


class EncodePlanner(Protocol):
    """The part of :class:`~inferscale_sdk.prompt.plan.Planner` that encoding needs."""

    def profile(self, fingerprint: str, strategy: str) -> str:
        """Names the KV of one model, frame and window strategy."""
        ...

    def plan_encode(
        self,
        window: Sequence[Fact],
        facts: Sequence[Fact],
        *,
        fingerprint: str,
        partition: str,
        capture_preamble: bool,
        messages: Sequence[Message] = (),
        readings: Mapping[str, Reading] | None = None,
        nonce: str = "",
    ) -> EncodePlan:
        """One encode request."""
        ...
