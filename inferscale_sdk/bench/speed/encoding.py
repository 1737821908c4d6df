"""Waiting for facts to be encoded for as long as it gets on, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.errors import EngineError, EngineTimeout
from inferscale_sdk.ingest.progress import EncodeProgress
from inferscale_sdk.memory import Memory

__all__ = ["PATIENCE_SECONDS", "encode_waiting", "wait_while_encoding"]

PATIENCE_SECONDS = 300.0
"""How long no fact may be encoded before waiting is given up."""
_LOOK_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


def encode_waiting(memory: Memory, stages: Stages) -> int:
    """Encode what is not yet, of everybody; returns how many facts that were.

    Raises:
        EngineError: As for :func:`wait_while_encoding`.
    """
    total = memory.stats().pending or 0
    if total:
        with stages.progress("encode", "Encoding facts", total) as tell:
            wait_while_encoding(memory, tell=lambda pending: tell(total - pending))
    return total


def wait_while_encoding(
    memory: Memory,
    *,
    user_id: str | None = None,
    tell: Callable[[int], None] = lambda _pending: None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until every fact that can be encoded is, while now and then one more of them is.

    A request that the engine does not answer in time ends nothing: its facts are tried again.

    Args:
        memory: Whose facts.
        user_id: Of whom; of everybody by default.
        tell: Told how many facts still wait.
        patience_seconds: How long none may be encoded.

    Raises:
        EngineUnavailable: The engine is gone.
        EngineError: It cannot inject, or nothing was encoded for ``patience_seconds``.
    """
    watch = _Watch(tell)
    look = min(_LOOK_SECONDS, patience_seconds)
    while not memory.wait_encoded(look, user_id=user_id, progress=watch.see):
        _require_engine(memory)
        watch.count(memory.stats().pending)
        if watch.idle_seconds >= patience_seconds:
            raise EngineError(
                f"{watch.pending} facts wait to be encoded, and for {patience_seconds:g} s none "
                "was; see the server's log. What is encoded is kept: the same command, run again, "
                "goes on from there"
            )
        time.sleep(min(_PAUSE_SECONDS, look))


def _require_engine(memory: Memory) -> None:
    """Refuse to wait for an engine that is gone or cannot inject; a slow one is waited for."""
    assert memory.engine is not None
    try:
        info = memory.engine.info(refresh=True)
    except EngineTimeout:
        return
    if not info.can_inject:
        raise EngineError(f"facts cannot be encoded: {info.reason}")


@dataclass(slots=True)
class _Watch:
    """When a fact was last encoded, by this process or another."""

    tell: Callable[[int], None]
    pending: int | None = None
    _encoded: int = 0
    _moved: float = field(default_factory=time.monotonic)

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._moved

    def see(self, now: EncodeProgress) -> None:
        """After a request."""
        if now.encoded not in (0, self._encoded):
            self._moved = time.monotonic()
        self._encoded = now.encoded
        self.tell(now.pending)

    def count(self, pending: int | None) -> None:
        """After a look at the store."""
        if pending is not None and pending != self.pending:
            self._moved = time.monotonic()
            self.pending = pending
