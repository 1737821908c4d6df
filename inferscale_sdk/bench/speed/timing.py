"""One request against the clock, in vLLM's vocabulary.

| name | meaning |
|---|---|
| TTFT | from sending the request to the first token, as the client sees it |
| E2EL | from sending the request to the last token |
| TPOT | (E2EL - TTFT) / (n - 1) for an answer of n tokens |
| ITL | the gaps between pieces of the stream, one token each unless the server joins some |
| query to first token | recall, planning and TTFT together |

The clock of E2EL starts where the engine is asked, a fraction of a millisecond before the engine's
own clock of TTFT starts; both end at the client.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inferscale_sdk.engines.base import Completion, Engine, Sampling
from inferscale_sdk.errors import EngineError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.types import InjectionReport

__all__ = ["Timed", "atimed", "collector_paused", "timed"]


@dataclass(frozen=True, slots=True)
class Timed:
    """One streamed answer.

    Args:
        completion: What came.
        plan: What was sent.
        ttft_ms: Time to first token.
        e2el_ms: Time to the last.
        itl_ms: Gaps between pieces of text.
        prepare_ms: Recall and planning before it; 0 where they were not timed.
    """

    completion: Completion
    plan: PromptPlan
    ttft_ms: float
    e2el_ms: float
    itl_ms: tuple[float, ...] = ()
    prepare_ms: float = 0.0

    @property
    def report(self) -> InjectionReport:
        """What became of the memory."""
        return self.completion.report

    @property
    def query_to_first_token_ms(self) -> float:
        """Recall, planning and time to first token."""
        return self.prepare_ms + self.ttft_ms

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; ``None`` for an answer of one token."""
        n = self.completion.completion_tokens
        return (self.e2el_ms - self.ttft_ms) / (n - 1) if n > 1 else None


def timed(
    engine: Engine, make_plan: Callable[[], PromptPlan], sampling: Sampling | None = None
) -> Timed:
    """Make a plan and stream its answer, both against the clock.

    Raises:
        EngineError: The engine failed, or did not time the first token.
    """
    asked = time.perf_counter()
    plan = make_plan()
    sent = time.perf_counter()
    seen = _Stream(plan, sent, prepare_ms=(sent - asked) * 1e3)
    for chunk in engine.stream(plan, sampling):
        seen.take(chunk.text, chunk.completion)
    return seen.timed()


async def atimed(engine: Engine, plan: PromptPlan, sampling: Sampling | None = None) -> Timed:
    """Async twin of :func:`timed`, for a plan that is made already."""
    seen = _Stream(plan, time.perf_counter())
    async for chunk in engine.astream(plan, sampling):
        seen.take(chunk.text, chunk.completion)
    return seen.timed()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Client and server share the processors; a garbage collection here shows as latency there."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Stream:
    def __init__(self, plan: PromptPlan, sent: float, prepare_ms: float = 0.0) -> None:
        self._plan, self._sent, self._prepare_ms = plan, sent, prepare_ms
        self._texts: list[float] = []
        self._ended = sent
        self._completion: Completion | None = None

    def take(self, text: str, completion: Completion | None) -> None:
        now = time.perf_counter()
        if text:
            self._texts.append(now)
        if completion is not None:
            self._completion = completion
        if text or completion is None or not self._texts:
            # What follows the last text is the server's report, which an exact one asks for anew.
            self._ended = now

    def timed(self) -> Timed:
        done = self._completion
        if done is None:
            raise EngineError("the engine's stream ended without saying how it went")
        if done.report.ttft_ms is None:
            raise EngineError("the engine did not time the first token of a streamed answer")
        gaps = zip(self._texts, self._texts[1:], strict=False)
        return Timed(
            completion=done,
            plan=self._plan,
            ttft_ms=done.report.ttft_ms,
            e2el_ms=max((self._ended - self._sent) * 1e3, done.report.ttft_ms),
            itl_ms=tuple((later - earlier) * 1e3 for earlier, later in gaps),
            prepare_ms=self._prepare_ms,
        )
