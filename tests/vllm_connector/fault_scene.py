"""What every fault of the table is shown on: a prompt with stored segments, and right answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from connector_harness import Harness, Outcome, key_of

from inferscale_sdk.protocol import CaptureSpan, EncodeOp, Reason
from inferscale_sdk.testing.fault_matrix import FaultOutcome
from inferscale_sdk.testing.fault_tier import FaultTier
from inferscale_sdk.testing.redis_server import RedisServer

N_MEMORY = 400
WIDTH = 50
N_ANSWER = 5
NOISE = 0.26  # of a log-probability: two units of bfloat16 logits; batches differ by one
EXACT, TEXT = FaultOutcome.EXACT, FaultOutcome.TEXT


@dataclass
class Scene:
    """A prompt whose first 400 tokens are eight stored segments, and the two right answers."""

    harness: Harness
    prompt: list[int]
    plain: Outcome
    exact: Outcome
    keys: list[str]
    patch: pytest.MonkeyPatch
    find_redis: Callable[[], RedisServer]

    @property
    def redis(self) -> RedisServer:
        return self.find_redis()

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(i, i + WIDTH) for i in range(0, N_MEMORY, WIDTH)]

    @property
    def segments(self) -> list[tuple[str, int]]:
        return [(key, WIDTH) for key in self.keys]

    @property
    def victim(self) -> str:
        return self.keys[3]

    def ask(self) -> Outcome:
        return self.harness.inject(self.prompt, self.segments, n=N_ANSWER, logprobs=3)

    def ask_raw(self, raw: Any, salt: str | None) -> Outcome:
        return self.harness.ask(self.prompt, raw, salt=salt, n=N_ANSWER, logprobs=3)

    def encode_again(self, tag: str) -> dict[str, Any]:
        """Encode everything under new keys; the answer, and the scene goes on with those."""
        self.keys = [
            key_of(tag, self.harness.fingerprint, self.prompt[:N_MEMORY], a, b)
            for a, b in self.bounds
        ]
        spans = tuple(
            CaptureSpan(key=key, start=a, stop=b)
            for key, (a, b) in zip(self.keys, self.bounds, strict=True)
        )
        op = EncodeOp(fingerprint=self.harness.fingerprint, captures=spans)
        answer = self.harness.ask(self.prompt[:N_MEMORY], op, n=2).answer
        assert answer is not None
        return answer

    @property
    def tier(self) -> FaultTier:
        """The store on disk, made breakable."""
        worker = self.harness.worker
        if not isinstance(worker._below, FaultTier):
            self.patch.setattr(worker, "_below", FaultTier(worker._below))
        return worker._below

    def file(self, key: str) -> Any:
        (path,) = self.harness.disk.rglob(f"{key}*.ifs")
        return path

    def outcome(self, out: Outcome) -> FaultOutcome:
        """By the first tokens: batches of other sizes differ in the last bits."""
        if out.token_ids[:N_ANSWER] != self.plain.token_ids:
            return FaultOutcome.WRONG
        if injected_tokens(out) < N_MEMORY:
            return TEXT
        return EXACT if self.close_to(out, self.exact) else FaultOutcome.WRONG

    @staticmethod
    def close_to(out: Outcome, reference: Outcome) -> bool:
        """Log-probabilities within the noise of bfloat16."""
        pairs = zip(out.logprobs, reference.logprobs, strict=False)
        return all(
            abs(step[token] - wanted[token]) < NOISE
            for step, wanted in pairs
            for token in step.keys() & wanted.keys()
        )


def injected_tokens(out: Outcome) -> int:
    """By the worker's own record, with those of an earlier load that vLLM's cache still had."""
    answer = out.answer or {}
    if "loaded_tokens" not in answer:
        return out.n_cached
    return int(answer["loaded_tokens"] or 0) + int(answer["local_tokens"])


@dataclass(frozen=True)
class Case:
    part: str
    fault: str
    stage: str
    run: Callable[[Scene], Outcome]
    expect: FaultOutcome
    reason: Reason | None = None


CASES: list[Case] = []


def case(part: str, fault: str, stage: str, expect: FaultOutcome, reason: Reason | None = None):
    def add(run: Callable[[Scene], Outcome]) -> Callable[[Scene], Outcome]:
        CASES.append(Case(part, fault, stage, run, expect, reason))
        return run

    return add
