"""Answers that are generated together."""

from __future__ import annotations

from collections.abc import Sequence

from inferscale_sdk.engines.transformers.cache import Cache, keep_rows, merge
from inferscale_sdk.engines.transformers.jobs import GenerateJob
from inferscale_sdk.engines.transformers.runner import Runner

__all__ = ["Batch"]


class Batch:
    """Rows of one cache, one per answer, padded on the left to the longest.

    Args:
        job: The first answer.
        cache: A cache of one row that holds its prompt.
    """

    def __init__(self, job: GenerateJob, cache: Cache) -> None:
        self.jobs: list[GenerateJob] = [job]
        self._cache = cache
        self._padding = [0]

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: GenerateJob, cache: Cache) -> None:
        """One more answer, with a cache of one row that holds its prompt."""
        old, new = self._cache.get_seq_length(), cache.get_seq_length()
        self._cache = merge([self._cache, cache])
        longest = max(old, new)
        self._padding = [padding + longest - old for padding in self._padding] + [longest - new]
        self.jobs.append(job)

    def step(self, runner: Runner) -> None:
        """Compute one token of every answer; those that are over leave."""
        tokens = [job.last_token for job in self.jobs]
        logits = runner.step(self._cache, tokens, self._padding)  # [row, vocabulary]
        # Every answer takes its token, also behind one that is over.
        over = [job.take(row) for job, row in zip(self.jobs, logits, strict=True)]
        self.keep([row for row, done in enumerate(over) if not done])

    def keep(self, rows: Sequence[int]) -> None:
        """Let the answers in all other rows leave."""
        if len(rows) == len(self.jobs):
            return
        self.jobs = [self.jobs[row] for row in rows]
        padding = [self._padding[row] for row in rows]
        if not rows:
            return
        # What was padding for all who stay goes with those who leave.
        common = min(padding)
        self._cache = keep_rows(self._cache, rows, common)
        self._padding = [each - common for each in padding]
