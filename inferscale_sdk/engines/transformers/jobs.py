"""What the engine's thread is asked to do, one object per request.

A job lives from ``submit`` to its last event. The scheduler calls, in this order: ``begin``, once
its prompt is about to be computed; ``computed``, when it has been; then, for a job that generates,
``take`` with the logits of each step until it says that it is over.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from inferscale_sdk.engines.transformers.cache import (
    Cache,
    append,
    library_cache,
    new_cache,
    read,
)
from inferscale_sdk.engines.transformers.events import Computed, Event, Failed, Finished, Text
from inferscale_sdk.engines.transformers.loading import LoadedModel
from inferscale_sdk.engines.transformers.proving import Proof
from inferscale_sdk.engines.transformers.runner import Runner
from inferscale_sdk.engines.transformers.sampling import Chooser
from inferscale_sdk.engines.transformers.segments import SegmentStore
from inferscale_sdk.engines.transformers.text import TextStream
from inferscale_sdk.errors import StoreError
from inferscale_sdk.injection.match import matching_prefix
from inferscale_sdk.injection.mean import averaged
from inferscale_sdk.injection.pieces import gather, pieces_between
from inferscale_sdk.kv.key import UNOWNED, token_digest
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.prompt.base import PlannedSegment
from inferscale_sdk.protocol import CaptureSpan, EncodeAnswer, EncodeOp, InjectAnswer, Reason

__all__ = ["Core", "EncodeJob", "GenerateJob", "Job", "Sink"]

log = logging.getLogger(__name__)

Sink: TypeAlias = Callable[[Event], None]


@dataclass
class Core:
    """What all jobs of one engine share.

    Args:
        model: The model.
        runner: Its forward passes.
        proof: What may be injected, and how keys turn.
        store: The segments.
    """

    model: LoadedModel
    runner: Runner
    proof: Proof
    store: SegmentStore
    _counters: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def injects(self) -> bool:
        """Whether the model takes segments.

        Its rows can then be batched, too: both need layers that keep keys and values of single
        tokens.
        """
        return self.proof.verdict.status == "exact"

    def empty_cache(self) -> Cache:
        """A cache for one row, in the form the model wants."""
        return new_cache() if self.injects else library_cache(self.model.module.config)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] += by

    def counters(self) -> dict[str, int]:
        """All counters since start."""
        with self._lock:
            return dict(self._counters)

    def keep(
        self, cache: Cache, prompt: Sequence[int], span: CaptureSpan, owner: str = ""
    ) -> Reason:
        """Store a computed span of a prompt as a segment; the reason if that failed."""
        try:
            data = read(cache, span.start, span.stop)
            digest = token_digest(prompt[span.start : span.stop])
            segment = Segment(span.key, data, span.start, digest, owner)
            if span.beside is not None:
                segment, reason = averaged(
                    segment,
                    self.store.get(span.beside),
                    self.proof.tables,
                    device=self.model.device,
                )
                if reason:
                    self.count("failed_captures")
                    return reason
            self.store.put(segment)
        except Exception as error:  # a capture that fails costs no answer
            expected = isinstance(error, StoreError)
            log.warning("segment not stored: %s", error, exc_info=None if expected else error)
            self.count("failed_captures")
            return Reason.STORE_FAILED
        self.count("captured_segments")
        return Reason.OK


class Job:
    """Base.

    Args:
        prompt: Token ids to compute.
        sink: Takes events; called in the engine's thread.
    """

    generates = False

    def __init__(self, prompt: Sequence[int], sink: Sink) -> None:
        self.prompt = tuple(prompt)
        self._sink = sink
        self.cancelled = False

    def cancel(self) -> None:
        """Nobody waits any more; the engine stops working on it before its next step."""
        self.cancelled = True

    def emit(self, event: Event) -> None:
        """Hand an event to whoever waits."""
        try:
            self._sink(event)
        except RuntimeError:  # its event loop has closed
            self.cancel()

    def fail(self, error: Exception) -> None:
        """The last event of a job that went wrong."""
        self.emit(Failed(error))

    def begin(self, core: Core) -> Cache:
        """The cache to compute the prompt in; what it holds already need not be computed."""
        return core.empty_cache()

    def computed(self, core: Core, cache: Cache) -> None:
        """The whole prompt is in ``cache``."""


class EncodeJob(Job):
    """Keep spans of a prompt as segments."""

    def __init__(self, prompt: Sequence[int], op: EncodeOp, sink: Sink) -> None:
        # What comes after the last span is nobody's context.
        super().__init__(prompt[: max(span.stop for span in op.captures)], sink)
        self._op = op

    def computed(self, core: Core, cache: Cache) -> None:
        """Store the spans."""
        outcome = {
            span.key: core.keep(cache, self.prompt, span, self._op.owner)
            for span in self._op.captures
        }
        answer = EncodeAnswer(
            stored=tuple(key for key, reason in outcome.items() if not reason),
            failed={key: reason for key, reason in outcome.items() if reason},
        )
        self.emit(Computed(answer))


class GenerateJob(Job):
    """Answer a prompt, with stored segments at its start where they are there and match.

    Args:
        prompt: Token ids.
        segments: What may be injected, contiguous from position 0.
        owner: Whose a preamble is that is learnt on the way.
        chooser: Chooses tokens.
        text: Makes text of them.
        max_tokens: Tokens of the answer at most.
        end_ids: Tokens that end the answer.
        sink: Takes events.
    """

    generates = True

    def __init__(
        self,
        prompt: Sequence[int],
        segments: Sequence[PlannedSegment],
        *,
        owner: str,
        chooser: Chooser,
        text: TextStream,
        max_tokens: int,
        end_ids: frozenset[int],
        sink: Sink,
    ) -> None:
        super().__init__(prompt, sink)
        self._segments = tuple(segments)
        self._owner = owner or UNOWNED
        self._chooser = chooser
        self._text = text
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._learn: CaptureSpan | None = None
        self._answer: dict[str, Any] = {}
        self._n_tokens = 0
        self.last_token = -1

    def begin(self, core: Core) -> Cache:
        """An empty cache, or one with the longest matching run of segments in it."""
        cache = core.empty_cache()
        if not self._segments:
            return cache
        # Held from here to the copy: what is evicted or forgotten meanwhile stays readable.
        found = {s.key: core.store.get(s.key) for s in self._segments}
        match = matching_prefix(self._segments, self.prompt, found.get, lambda _: Reason.MISSING)
        self._answer = {"reason": match.reason, "missing_keys": match.missing}
        # At least one prompt token must be left for the model to compute.
        last = min(match.end, len(self.prompt) - 1)
        first = self._segments[0]
        if match.end == 0 and first.kind == "preamble":
            self._learn = CaptureSpan(key=first.key, start=0, stop=first.n_tokens)
        if last > 0:
            known = {key: segment for key, segment in found.items() if segment is not None}
            self._load(core, cache, known, last)
        loaded = self._answer.get("loaded_tokens", 0)
        core.count("injections" if loaded else "text_injections")
        if reason := self._answer["reason"]:
            core.count(f"reason_{reason.value}")
        return cache

    def _load(self, core: Core, cache: Cache, known: dict[str, Segment], last: int) -> None:
        """Write prompt tokens 0 to ``last`` into ``cache``; a failure leaves it empty."""
        assert core.proof.layout is not None
        pieces = pieces_between(self._segments, 0, last)
        try:
            data = gather(
                pieces, known, core.proof.layout, core.proof.tables, device=core.model.device
            )
        except Exception:
            log.exception("loading %d segments failed; their tokens are computed", len(pieces))
            core.count("failed_loads")
            self._answer["reason"] = Reason.LOAD_FAILED
            return
        append(cache, data)
        core.count("loaded_tokens", last)
        keys = tuple(piece.key for piece in pieces)
        self._answer |= {"claimed_tokens": last, "loaded_tokens": last, "loaded_keys": keys}

    def computed(self, core: Core, cache: Cache) -> None:
        """Keep a preamble that was not known."""
        learn = self._learn
        if learn is not None and not core.keep(cache, self.prompt, learn, self._owner):
            self._answer["learned_keys"] = (learn.key,)
            core.count("learned_preambles")

    def take(self, logits: torch.Tensor) -> bool:
        """Choose the next token from ``logits`` [vocabulary]; true when the answer is over."""
        self.last_token = self._chooser.choose(logits)
        self._n_tokens += 1
        if self.last_token in self._end_ids:
            return self._finish("stop")
        if piece := self._text.push(self.last_token):
            self.emit(Text(piece))
        if self._text.stopped:
            return self._finish("stop")
        return self._n_tokens >= self._max_tokens and self._finish("length")

    def _finish(self, reason: str) -> bool:
        if rest := self._text.finish():
            self.emit(Text(rest))
        if self._text.stopped:
            reason = "stop"
        answer = InjectAnswer(**self._answer) if self._segments else None
        self.emit(Finished(reason, self._n_tokens, answer))
        return True
