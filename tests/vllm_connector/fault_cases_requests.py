"""Faults of clients, of the scheduler and the clock, and requests that make no sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from connector_harness import Outcome, key_of
from fault_scene import EXACT, N_ANSWER, N_MEMORY, TEXT, Scene, case

from inferscale_sdk.protocol import (
    CaptureSpan,
    EncodeOp,
    InjectOp,
    Reason,
    SegmentRef,
    salt_suffix,
)

# -- clients --------------------------------------------------------------------------------------


def abandoned(scene: Scene, prompt: list[int], op: Any, salt: str, steps: int) -> None:
    """A request that is aborted after some engine steps."""
    from vllm import SamplingParams

    engine = scene.harness.llm.llm_engine
    extra = {"kv_transfer_params": {"inferscale": op.model_dump(mode="json")}}
    params = SamplingParams(max_tokens=20, temperature=0, extra_args=extra)
    request_id = f"abandoned-{time.monotonic_ns()}"
    # Returns the id that the engine goes by.
    internal = engine.add_request(
        request_id, {"prompt_token_ids": prompt, "cache_salt": salt}, params
    )
    for _ in range(steps):
        engine.step()
    engine.abort_request([internal or request_id], internal=True)
    while engine.has_unfinished_requests():
        engine.step()


for steps, stage in {0: "before its first step", 1: "load", 3: "answer"}.items():

    @case("client", "gone", stage, EXACT, Reason.OK)
    def _(scene: Scene, steps: int = steps) -> Outcome:
        op, salt = scene.harness.inject_op(scene.segments)
        abandoned(scene, scene.prompt, op, salt, steps)
        return scene.ask()


@case("client", "gone", "while its segments are read", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    op, salt = scene.harness.inject_op(scene.segments)
    with scene.tier.failing(get_delay_seconds=0.1):
        abandoned(scene, scene.prompt, op, salt, 2)
        while scene.harness.worker._reading:
            time.sleep(0.02)
    return scene.ask()


@case("client", "gone", "encode", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    """One step of a prompt that needs two: some spans are kept, none is torn."""
    prompt = (scene.prompt[:N_MEMORY] * 4)[:1500]
    scene.keys = [key_of("gone", scene.harness.fingerprint, prompt, a, b) for a, b in scene.bounds]
    spans = (CaptureSpan(key=scene.keys[0], start=1000, stop=1200),)
    op = EncodeOp(fingerprint=scene.harness.fingerprint, captures=spans)
    abandoned(scene, prompt, op, "gone", 1)
    assert scene.keys[0] not in scene.harness.worker._resident
    return scene.ask()


# -- the scheduler --------------------------------------------------------------------------------


def asked_at_once(
    scene: Scene, n_requests: int, n_blocks: int, n: int
) -> tuple[list[Outcome], list[str]]:
    """Injections at once with few cache blocks; and which requests were preempted for it."""
    with scene.harness.few_blocks(n_blocks) as preempted:
        ops = [scene.harness.inject_op(scene.segments) for _ in range(n_requests)]
        outs = scene.harness.ask_many([(scene.prompt, *op) for op in ops], n=n, logprobs=3)
    return outs, preempted


@case("scheduler", "preempted before its answer is done", "answer", EXACT)
def _(scene: Scene) -> Outcome:
    outs, preempted = asked_at_once(scene, 5, n_blocks=21, n=140)
    assert preempted
    for out in outs:
        assert out.answer["claimed_tokens"] + out.answer["local_tokens"] == N_MEMORY
        assert out.token_ids[:N_ANSWER] == scene.exact.token_ids
    return outs[0]


@case("scheduler", "the cache has no free block for a while", "load", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    """Six requests, room for two at a time: they wait for each other, their pins with them."""
    outs, _ = asked_at_once(scene, 6, n_blocks=9, n=N_ANSWER)
    assert all(scene.outcome(out) is EXACT for out in outs)
    return outs[-1]


@contextmanager
def clock(scene: Scene, jump_seconds: float) -> Iterator[None]:
    now = time.time
    calls = iter(range(10**9))
    scene.patch.setattr(time, "time", lambda: now() + jump_seconds * (next(calls) % 2))
    yield
    scene.patch.undo()


for jump, how in {86_400.0: "jumps a day ahead and back", -86_400.0: "jumps a day back"}.items():

    @case("clock", how, "read", EXACT, Reason.OK)
    def _(scene: Scene, jump: float = jump) -> Outcome:
        scene.harness.drop_resident()
        with clock(scene, jump):
            return scene.ask()


# -- what clients send ----------------------------------------------------------------------------


def inject(scene: Scene, **changes: Any) -> dict[str, Any]:
    refs = tuple(SegmentRef(key=key, n_tokens=n) for key, n in scene.segments)
    op = InjectOp(fingerprint=scene.harness.fingerprint, segments=refs)
    return op.model_dump(mode="json") | changes


def bound(scene: Scene) -> str:
    return f"{time.monotonic_ns()}:{salt_suffix(scene.keys)}"


SENT: dict[str, tuple[Callable[[Scene], Any], Callable[[Scene], str | None], Reason]] = {
    "not an object": (lambda s: "inject", bound, Reason.MALFORMED),
    "an unknown version": (lambda s: inject(s, v=2), bound, Reason.UNSUPPORTED_VERSION),
    "an unknown operation": (lambda s: inject(s, op="steal"), bound, Reason.MALFORMED),
    "an unknown field": (lambda s: inject(s, hurry=True), bound, Reason.MALFORMED),
    "no segments": (lambda s: inject(s, segments=[]), bound, Reason.MALFORMED),
    "a key that is none": (
        lambda s: inject(s, segments=[{"key": "../../etc/passwd", "n_tokens": 5}]),
        bound,
        Reason.MALFORMED,
    ),
    "segments longer than the prompt": (
        lambda s: inject(s, segments=[{"key": s.keys[0], "n_tokens": 5000}]),
        bound,
        Reason.MALFORMED,
    ),
    "another model's fingerprint": (
        lambda s: inject(s, fingerprint="0" * 40),
        bound,
        Reason.WRONG_MODEL,
    ),
    "no salt": (inject, lambda s: None, Reason.NO_SALT),
    "a salt bound to other segments": (
        inject,
        lambda s: f"{time.monotonic_ns()}:{salt_suffix(s.keys[:-1])}",
        Reason.WRONG_SALT,
    ),
    "nested a hundred deep": (lambda s: inject(s, segments=deep(100)), bound, Reason.MALFORMED),
}


def deep(n: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(n):
        nested = [nested]
    return nested


for name, (raw, salt, why) in SENT.items():

    @case("request", name, "arrival", TEXT, why)
    def _(scene: Scene, raw: Any = raw, salt: Any = salt) -> Outcome:
        return scene.ask_raw(raw(scene), salt(scene))


@case("request", "unknown keys", "arrival", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.keys = ["e" * 40, *scene.keys[1:]]
    return scene.ask()


@case("request", "segments of another prompt", "arrival", TEXT, Reason.TOKEN_MISMATCH)
def _(scene: Scene) -> Outcome:
    scene.keys = [scene.keys[0], *reversed(scene.keys[1:])]
    return scene.ask()


@case("request", "a model not proved yet", "arrival", TEXT, Reason.NOT_PROBED)
def _(scene: Scene) -> Outcome:
    core = scene.harness.scheduler._core
    scene.patch.setattr(core, "verdict", core.verdict.model_copy(update={"status": "pending"}))
    return scene.ask()


@case("connector", "raises in the scheduler's hook", "arrival", TEXT)
def _(scene: Scene) -> Outcome:
    def broken(request: Any) -> None:
        raise RuntimeError("simulated")

    scene.patch.setattr(scene.harness.scheduler, "on_new_request", broken)
    return scene.ask()


@case("connector", "raises while it answers", "answer", EXACT)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.vllm_connector.jobs.inject import InjectJob

    def broken(self: Any) -> None:
        raise RuntimeError("simulated")

    scene.patch.setattr(InjectJob, "answer", broken)
    return scene.ask()
