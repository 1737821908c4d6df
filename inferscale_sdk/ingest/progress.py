"""What the encoder has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

__all__ = ["EncodeProgress", "ProgressCallback"]


@dataclass(frozen=True, slots=True)
class EncodeProgress:
    """Work done by one call, or since the encoder was made.

    Args:
        encoded: Facts that have KV now.
        failed: Facts the engine would not capture; they are tried again later.
        unencodable: Facts longer than the model's context; they stay prompt text.
        requests: Encode requests sent.
        own_tokens: Tokens of the facts captured.
        prompt_tokens: Tokens of all requests: headers, windows and facts.
        forgotten: Keys the engine was told to drop.
        pending: Facts still without KV in the scope of the call.
        reason: Why nothing more was done, for people; empty when there was nothing more to do.
    """

    encoded: int = 0
    failed: int = 0
    unencodable: int = 0
    requests: int = 0
    own_tokens: int = 0
    prompt_tokens: int = 0
    forgotten: int = 0
    pending: int = 0
    reason: str = ""

    @property
    def overhead(self) -> float:
        """Tokens prefilled per token captured; 0.0 before anything was captured."""
        return self.prompt_tokens / self.own_tokens if self.own_tokens else 0.0

    def plus(self, other: EncodeProgress) -> EncodeProgress:
        """Sum of the counts; ``pending`` and ``reason`` are those of ``other``, the later one."""
        counts = {
            f.name: getattr(self, f.name) + getattr(other, f.name)
            for f in fields(self)
            if f.name not in ("pending", "reason")
        }
        return EncodeProgress(**counts, pending=other.pending, reason=other.reason)


ProgressCallback = Callable[[EncodeProgress], None]
