"""The thread that owns the model.

Each turn computes one chunk of one prompt and one token of every answer under way, so that a long
prompt holds nobody up for longer than a chunk takes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from itertools import chain
from queue import Empty, SimpleQueue

from inferscale_sdk.engines.transformers.batch import Batch
from inferscale_sdk.engines.transformers.cache import Cache
from inferscale_sdk.engines.transformers.jobs import Core, GenerateJob, Job
from inferscale_sdk.errors import EngineError, EngineUnavailable

__all__ = ["Scheduler"]

log = logging.getLogger(__name__)


@dataclass
class _Prefill:
    """A prompt being computed."""

    job: Job
    cache: Cache


class Scheduler:
    """Runs jobs; ``submit`` and ``close`` may be called from any thread.

    Args:
        core: Model and segments.
        max_batch: Answers generated together at most.
        prefill_chunk_tokens: Prompt tokens computed at once at most.
    """

    def __init__(self, core: Core, *, max_batch: int, prefill_chunk_tokens: int) -> None:
        self._core = core
        self._max_batch = max_batch
        self._chunk = prefill_chunk_tokens
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._prefill: _Prefill | None = None
        self._batches: list[Batch] = []
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="inferscale-model", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job.

        Raises:
            EngineUnavailable: The engine is closed.
        """
        with self._lock:
            if self._closed:
                raise _closed()
            self._inbox.put(job)

    def close(self) -> None:
        """Stop; jobs under way fail. Twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while self._receive():
            self._drop_cancelled()
            self._advance_prefill()
            for batch in list(self._batches):
                self._advance(batch)
            self._batches = [batch for batch in self._batches if len(batch)]
        for job in self._all_jobs():
            job.fail(_closed())

    def _receive(self) -> bool:
        """Take in new jobs, waiting for one if there is nothing to do; false to stop."""
        idle = not (self._waiting or self._prefill or self._batches)
        try:
            while True:
                job = self._inbox.get(block=idle)
                if job is None:
                    return False
                self._waiting.append(job)
                idle = False
        except Empty:
            return True

    def _drop_cancelled(self) -> None:
        self._waiting = deque(job for job in self._waiting if not job.cancelled)
        if self._prefill is not None and self._prefill.job.cancelled:
            self._prefill = None
        for batch in self._batches:
            batch.keep([row for row, job in enumerate(batch.jobs) if not job.cancelled])
        self._batches = [batch for batch in self._batches if len(batch)]

    def _advance_prefill(self) -> None:
        if self._prefill is None and not self._start_prefill():
            return
        prefill = self._prefill
        assert prefill is not None
        job, cache = prefill.job, prefill.cache
        try:
            done = cache.get_seq_length()
            logits = self._core.runner.prefill(cache, job.prompt[done : done + self._chunk])
            if cache.get_seq_length() < len(job.prompt):
                return
            self._prefill = None
            job.computed(self._core, cache)
            if isinstance(job, GenerateJob) and not job.take(logits):
                self._join(job, cache)
        except Exception as error:
            self._prefill = None
            _fail([job], error)

    def _start_prefill(self) -> bool:
        """Begin with the next job; false if there is none or no room for it."""
        job = self._next()
        if job is None:
            return False
        self._waiting.remove(job)
        try:
            self._prefill = _Prefill(job, job.begin(self._core))
        except Exception as error:
            _fail([job], error)
            return False
        return True

    def _next(self) -> Job | None:
        """The oldest job that may begin, answers before encodings: nobody waits for those."""
        full = sum(map(len, self._batches)) >= self._max_batch
        asked = () if full else (job for job in self._waiting if job.generates)
        encodings = (job for job in self._waiting if not job.generates)
        return next(chain(asked, encodings), None)

    def _join(self, job: GenerateJob, cache: Cache) -> None:
        if self._batches and self._core.injects:
            self._batches[0].add(job, cache)
        else:
            self._batches.append(Batch(job, cache))

    def _advance(self, batch: Batch) -> None:
        try:
            batch.step(self._core.runner)
        except Exception as error:
            _fail(batch.jobs, error)
            batch.keep([])

    def _all_jobs(self) -> list[Job]:
        jobs: list[Job] = [job for batch in self._batches for job in batch.jobs]
        if self._prefill is not None:
            jobs.append(self._prefill.job)
        jobs.extend(self._waiting)
        while True:
            try:
                job = self._inbox.get_nowait()
            except Empty:
                return jobs
            if job is not None:
                jobs.append(job)


def _closed() -> EngineUnavailable:
    return EngineUnavailable("the engine is closed; build another TransformersEngine")


def _fail(jobs: list[Job] | list[GenerateJob], error: Exception) -> None:
    """What went wrong concerns these jobs alone."""
    log.error("%d requests failed in the model", len(jobs), exc_info=error)
    for job in jobs:
        job.fail(EngineError(f"the model failed: {type(error).__name__}: {error}"))
