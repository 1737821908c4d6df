"""Every fault inside the server: the engine lives, the answer is right, nothing stays pinned.

Each case is one cell of the table in ``docs/reliability.md``. What it ended as is found out by
comparison with two references, the plain prompt's answer and the exact injected one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import resource
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from connector_harness import Harness, Outcome, key_of

from inferscale_sdk.errors import StoreError, StoreFull
from inferscale_sdk.kv.codec import dump
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import (
    CaptureSpan,
    EncodeOp,
    ForgetOp,
    InjectOp,
    Reason,
    SegmentRef,
    salt_suffix,
)
from inferscale_sdk.testing.fault_matrix import FaultCell, FaultOutcome
from inferscale_sdk.testing.fault_tier import FaultTier
from inferscale_sdk.testing.redis_server import BINARIES, RedisServer, find_redis, running_redis
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects
from inferscale_sdk.vllm_connector import capture
from inferscale_sdk.vllm_connector.index import ABSENCE_SECONDS

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


@pytest.fixture(scope="module")
def references(harness: Harness) -> tuple[list[int], Outcome, Outcome]:
    lines = (
        f"- On day {i} Anna walked {3 * i + 2} kilometres along the river to house {i * 7 % 31}.\n"
        for i in range(40)
    )
    prompt = harness.encode_text("".join(lines))[: N_MEMORY + 30]
    bounds = [(i, i + WIDTH) for i in range(0, N_MEMORY, WIDTH)]
    keys = harness.encode(prompt[:N_MEMORY], bounds, tag="reference")
    segments = [(key, WIDTH) for key in keys]
    plain = harness.ask(prompt, n=N_ANSWER, logprobs=3)
    exact = harness.inject(prompt, segments, n=N_ANSWER, logprobs=3)
    assert exact.n_cached == N_MEMORY
    return prompt, plain, exact


@pytest.fixture(scope="module")
def redis(tmp_path_factory) -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip(f"none of {', '.join(BINARIES)} is installed")
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def scene(harness, references, request, monkeypatch) -> Iterator[Scene]:
    prompt, plain, exact = references
    found = Scene(
        harness, prompt, plain, exact, [], monkeypatch, lambda: request.getfixturevalue("redis")
    )
    tag = hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    found.encode_again(tag)
    before = free_blocks(harness)
    yield found
    monkeypatch.undo()
    # Whatever happened: nothing is pinned or left over, and the engine injects as before.
    assert leaks(harness) == []
    assert free_blocks(harness) == before
    found.encode_again(tag + "-after")
    assert found.outcome(found.ask()) is EXACT


def free_blocks(harness: Harness) -> int:
    scheduler = harness.llm.llm_engine.engine_core.engine_core.scheduler
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def leaks(harness: Harness) -> list[str]:
    half = harness.scheduler
    found = {
        "pinned": half._core.index.stats()["pinned_bytes"],
        "jobs": half._jobs,
        "leaving": half._leaving,
        "loads": half._core.loads,
        "reading": harness.worker._reading,
    }
    return [name for name, left in found.items() if left]


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


# -- the store on disk, while segments are read --------------------------------------------------


def damaged(scene: Scene, change: Callable[[bytearray], bytes | bytearray]) -> Outcome:
    scene.harness.drop_resident()
    path = scene.file(scene.victim)
    path.write_bytes(change(bytearray(path.read_bytes())))
    return scene.ask()


def flipped(at: Callable[[int], int]) -> Callable[[bytearray], bytearray]:
    def change(raw: bytearray) -> bytearray:
        raw[at(len(raw))] ^= 0x10
        return raw

    return change


for name, at in {
    "a bit of the magic flipped": lambda n: 0,
    "a bit of the header flipped": lambda n: 60,
    "a bit of the tensor flipped": lambda n: n // 2,
    "the last bit flipped": lambda n: n - 1,
}.items():
    CASES.append(
        Case(
            "segment file",
            name,
            "read",
            lambda scene, at=at: damaged(scene, flipped(at)),
            TEXT,
            Reason.MISSING,
        )
    )
for name, change in {
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "last byte missing": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "a byte too long": lambda raw: raw + b"\0",
    "all zeros": lambda raw: bytes(len(raw)),
}.items():
    CASES.append(
        Case(
            "segment file",
            name,
            "read",
            lambda scene, change=change: damaged(scene, change),
            TEXT,
            Reason.MISSING,
        )
    )


@case("segment file", "deleted by someone", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    scene.file(scene.victim).unlink()
    return scene.ask()


@case("segment file", "a folder in its place", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    path = scene.file(scene.victim)
    path.unlink()
    path.mkdir()
    out = scene.ask()
    path.rmdir()
    return out


@case("segment file", "another fact's file under its name", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    other = scene.file(scene.keys[5]).read_bytes()
    scene.file(scene.victim).write_bytes(other)
    return scene.ask()


@case("segment file", "another model's file under its name", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    segment = scene.harness.resident(scene.victim)
    scene.harness.drop_resident()
    scene.file(scene.victim).write_bytes(b"".join(dump(segment, "f" * 40)))
    return scene.ask()


@case("segment file", "right name and model, other tokens", "read", TEXT, Reason.TOKEN_MISMATCH)
def _(scene: Scene) -> Outcome:
    other, mine = scene.harness.resident(scene.keys[5]), scene.harness.resident(scene.victim)
    forged = replaced(other, key=mine.key)
    scene.harness.drop_resident()
    scene.file(scene.victim).write_bytes(b"".join(dump(forged, scene.harness.fingerprint)))
    return scene.ask()


@case("segment file", "right name, other number of heads", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    mine = scene.harness.resident(scene.victim)
    other = replaced(mine, data=mine.data[:, :, :, :1].contiguous())
    scene.harness.worker._resident[scene.victim] = other
    return scene.ask()


def replaced(segment: Segment, **fields: Any) -> Segment:
    return dataclasses.replace(segment, **fields)


@case("disk", "read error", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    with scene.tier.failing(get_error=OSError(errno.EIO, "simulated")):
        return scene.ask()


@case("disk", "an error nobody thought of", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    with scene.tier.failing(get_error=RuntimeError("simulated")):
        return scene.ask()


@case("disk", "says it has a segment, then has not", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    with scene.tier.failing(lose=True):
        return scene.ask()


@case("disk", "slow", "read", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    with scene.tier.failing(get_delay_seconds=0.05):
        return scene.ask()


@case("disk", "slower than the time limit", "read", TEXT, Reason.LOAD_TIMEOUT)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    config = scene.harness.scheduler._core.config
    short = config.model_copy(update={"load_timeout_seconds": 0.05})
    scene.patch.setattr(scene.harness.scheduler._core, "config", short)
    with scene.tier.failing(get_delay_seconds=0.4):
        out = scene.ask()
    while scene.harness.worker._reading:
        time.sleep(0.05)
    return out


@case("disk", "gives another segment than asked for", "read", TEXT, Reason.TOKEN_MISMATCH)
def _(scene: Scene) -> Outcome:
    other = scene.harness.resident(scene.keys[0])
    scene.harness.drop_resident()
    with scene.tier.failing(swap=lambda found: replaced(other, key=found.key)):
        return scene.ask()


# -- the store on disk, while segments are written -----------------------------------------------


@case("disk", "full", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    with scene.tier.failing(put_error=StoreFull("no space left (simulated)")):
        answer = scene.encode_again("full")
    assert answer["stored"] == scene.keys  # in memory
    return scene.ask()


@case("disk", "full, and the server starts again", "encode", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    with scene.tier.failing(put_error=StoreFull("no space left (simulated)")):
        scene.encode_again("full-restart")
    scene.harness.drop_resident()
    return scene.ask()


@case("disk", "no room for a whole file (the kernel refuses)", "encode", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        scene.encode_again("file-size")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(scene.harness.disk.rglob(f"{scene.victim}*"))
    scene.harness.drop_resident()
    return scene.ask()


@case("disk", "write error", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    with scene.tier.failing(put_error=StoreError("input/output error (simulated)")):
        scene.encode_again("write-error")
    return scene.ask()


@case("disk", "an error nobody thought of", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    with scene.tier.failing(put_error=OSError(errno.EROFS, "simulated")):
        scene.encode_again("odd-error")
    return scene.ask()


@case("disk", "slow", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    with scene.tier.failing(put_delay_seconds=0.05):
        scene.encode_again("slow-write")
    return scene.ask()


@case("host memory", "no room beside what is pinned", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    ledger = scene.harness.scheduler._core.index._ledger
    capacity = ledger._capacity
    scene.patch.setattr(ledger, "_capacity", 1)
    scene.encode_again("no-room")
    scene.patch.setattr(ledger, "_capacity", capacity)
    time.sleep(ABSENCE_SECONDS)
    return scene.ask()  # from disk


@case("host memory", "no room while segments are read back", "read", TEXT, Reason.STORE_FAILED)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    ledger = scene.harness.scheduler._core.index._ledger
    capacity = ledger._capacity
    scene.patch.setattr(ledger, "_capacity", 1)
    out = scene.ask()
    scene.patch.setattr(ledger, "_capacity", capacity)
    return out


@case("host memory", "evicted by others' segments", "between encode and question", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    mine = list(scene.keys)
    ledger = scene.harness.scheduler._core.index._ledger
    capacity = ledger._capacity
    scene.patch.setattr(ledger, "_capacity", ledger.used_bytes)
    scene.encode_again("others")
    scene.patch.setattr(ledger, "_capacity", capacity)
    scene.keys = mine
    return scene.ask()


@case("two servers", "the other one deletes the files", "read", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.tiers.disk import DiskTier

    with DiskTier(scene.harness.disk, scene.harness.fingerprint) as other:
        for key in scene.keys:
            assert other.delete(key)
    return scene.ask()  # still in this one's memory


@case("two servers", "the other one evicts while this one reads", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.tiers.disk import DiskTier

    scene.harness.drop_resident()
    other = DiskTier(scene.harness.disk, scene.harness.fingerprint)
    gone: list[bool] = []

    def evict(key: str) -> None:
        if key == scene.victim:
            gone.append(other.delete(key))

    with scene.tier.failing(before_get=evict):
        out = scene.ask()
    assert gone == [True]
    return out


@case("two servers", "both write the same segments", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.tiers.disk import DiskTier

    with DiskTier(scene.harness.disk, scene.harness.fingerprint) as other:
        for key in scene.keys:
            other.put(scene.harness.resident(key))
    scene.harness.drop_resident()
    return scene.ask()


# -- the remote tier ------------------------------------------------------------------------------


@dataclass
class Remote:
    """A real Redis or Valkey server below this engine's host memory, in place of the disk."""

    scene: Scene
    server: RedisServer
    tier: RemoteTier

    @classmethod
    def below(cls, scene: Scene, port: int | None = None) -> Remote:
        """Everything encoded, stored there, and out of memory."""
        server = scene.redis
        url = f"redis://127.0.0.1:{port or server.port}/0"
        tier = RemoteTier(open_objects(url, FAST, {}), scene.harness.fingerprint, limits=FAST)
        scene.patch.setattr(scene.harness.worker, "_below", tier)
        tag = hashlib.sha256(str(time.monotonic_ns()).encode()).hexdigest()[:20]
        scene.encode_again(tag)
        scene.harness.drop_resident()
        return cls(scene, server, tier)

    def object(self, key: str) -> tuple[Any, str]:
        """A client of the server, and the name under which it has a segment."""
        import redis

        name = self.tier.object_name(key)
        client = redis.Redis(port=self.server.port)
        (found,) = [one for one in client.keys("*") if one.decode().endswith(name)]
        return client, found.decode()


FAST = RemoteLimits(connect_timeout_seconds=0.5, timeout_seconds=1.0, cooldown_seconds=0.2)


@case("remote", "in order", "read", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    Remote.below(scene)
    return scene.ask()


@case("remote", "down", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    remote = Remote.below(scene)
    remote.server.stop()
    try:
        return scene.ask()
    finally:
        remote.server.start()


@case("remote", "down", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    remote = Remote.below(scene)
    remote.server.stop()
    try:
        answer = scene.encode_again("remote-down")
        assert answer["stored"] == scene.keys
        return scene.ask()
    finally:
        remote.server.start()


@case("remote", "restarted without its data", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    remote = Remote.below(scene)
    remote.server.stop()
    remote.server.start()
    return scene.ask()


@case("remote", "hangs", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    remote = Remote.below(scene)
    assert remote.server.process is not None
    remote.server.process.send_signal(signal.SIGSTOP)
    try:
        return scene.ask()
    finally:
        remote.server.process.send_signal(signal.SIGCONT)


@case("remote", "full", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    import redis

    remote = Remote.below(scene)
    client = redis.Redis(port=remote.server.port)
    client.config_set("maxmemory", 1)
    try:
        scene.encode_again("remote-full")
        return scene.ask()
    finally:
        client.config_set("maxmemory", 0)


for name, change in {
    "a bit flipped": flipped(lambda n: n // 2),
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "rubbish": lambda raw: b"rubbish",
}.items():

    @case("remote", f"object damaged: {name}", "read", TEXT, Reason.MISSING)
    def _(scene: Scene, change: Callable[[bytearray], bytes | bytearray] = change) -> Outcome:
        remote = Remote.below(scene)
        client, name = remote.object(scene.victim)
        client.set(name, bytes(change(bytearray(client.get(name)))))
        return scene.ask()


@case("remote", "another fact's object under its name", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    remote = Remote.below(scene)
    client, name = remote.object(scene.victim)
    _, other = remote.object(scene.keys[0])
    client.set(name, client.get(other))
    return scene.ask()


@case("remote", "connection reset in the middle of a transfer", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    with cutting_proxy(scene.redis.port) as (port, budget):
        Remote.below(scene, port)
        budget[0] = 300_000  # bytes, which is less than one segment
        return scene.ask()


@contextmanager
def cutting_proxy(target: int) -> Iterator[tuple[int, list[int]]]:
    """A port before another, which resets every connection once the budget is used up."""
    budget = [1 << 40]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target)) as upstream:
                threading.Thread(target=self.forth, args=(upstream,), daemon=True).start()
                with contextlib.suppress(OSError):
                    while (data := upstream.recv(65_536)) and budget[0] > 0:
                        budget[0] -= len(data)
                        self.request.sendall(data)

        def forth(self, upstream: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := self.request.recv(65_536):
                    upstream.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], budget
        finally:
            server.shutdown()


@case("disk", "does not remove what shall be forgotten", "forget", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    """Said to the client, who keeps the keys queued and asks again."""
    forget = ForgetOp(keys=tuple(scene.keys))
    with scene.tier.failing(delete_error=StoreError("read-only (simulated)")):
        answer = scene.harness.ask([5], forget).answer
    assert answer["failed"] == sorted(scene.keys)
    again = scene.harness.ask([5], forget).answer
    assert again["failed"] == [] and again["forgotten"] == len(scene.keys)
    return scene.ask()


# -- the load itself ------------------------------------------------------------------------------


@case("load", "fails before anything is written", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def broken(plan: Any, resident: Any) -> None:
        raise OSError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", broken)
    return scene.ask()


@case("load", "fails after half of the layers", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def half(self: Any, layer: int, keys: Any, values: Any, slots: Any) -> None:
        if layer == 15:
            raise RuntimeError("simulated")
        write(self, layer, keys * 0, values * 0, slots)

    stack = type(scene.harness.worker._stack)
    write = stack.write
    scene.patch.setattr(stack, "write", half)
    return scene.ask()


@case("load", "fails after all was written", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    load = scene.harness.worker._loader.load

    def late(plan: Any, resident: Any) -> None:
        load(plan, resident)
        raise RuntimeError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", late)
    return scene.ask()


@case("load", "out of memory", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def starved(plan: Any, resident: Any) -> None:
        raise torch.OutOfMemoryError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", starved)
    return scene.ask()


@case("load", "segment evicted between claim and load", "load", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    worker = scene.harness.worker
    load = worker.load

    def evicted() -> None:
        worker._resident.discard(scene.victim)
        load()

    scene.patch.setattr(worker, "load", evicted)
    out = scene.ask()
    scene.harness.scheduler._core.index.remove([scene.victim])
    return out


@case("load", "forgotten between claim and load", "load", EXACT)
def _(scene: Scene) -> Outcome:
    """Claimed in the step before the deletion arrives: the question came first."""
    op, salt = scene.harness.inject_op(scene.segments)
    forget = ForgetOp(keys=tuple(scene.keys))
    outs = ask_both(scene, [(scene.prompt, op, salt), ([5], forget, "x")])
    assert outs[1].answer["forgotten"] == len(scene.keys)
    return outs[0]


def ask_both(scene: Scene, requests: Any) -> list[Outcome]:
    return scene.harness.ask_many(requests, n=N_ANSWER, logprobs=3)


@case("load", "planning fails", "load", TEXT)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.vllm_connector.jobs.inject import InjectJob

    def broken(self: Any, block_ids: Any, n_external: int) -> None:
        raise RuntimeError("simulated")

    scene.patch.setattr(InjectJob, "allocated", broken)
    return scene.ask()


# -- capture --------------------------------------------------------------------------------------


@case("capture", "fails in one layer", "encode", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    def broken(slots: Any, wanted: Any) -> None:
        raise RuntimeError("simulated")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_rows", broken)
        answer = scene.encode_again("capture-fails")
    assert not answer["stored"]
    return scene.ask()


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


@case("scheduler", "preempted before its answer is done", "answer", EXACT)
def _(scene: Scene) -> Outcome:
    scheduler = scene.harness.llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.kv_cache_manager.reset_prefix_cache()
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def spy(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scene.patch.setattr(scheduler, "_preempt_request", spy)
    held = pool.get_new_blocks(pool.get_num_free_blocks() - 21)
    try:
        requests = [(scene.prompt, *scene.harness.inject_op(scene.segments)) for _ in range(5)]
        outs = scene.harness.ask_many(requests, n=140, logprobs=3)
    finally:
        pool.free_blocks(held)
    assert preempted
    for out in outs:
        assert out.answer["claimed_tokens"] + out.answer["local_tokens"] == N_MEMORY
        assert out.token_ids[:N_ANSWER] == scene.exact.token_ids
    return outs[0]


@case("scheduler", "the cache has no free block for a while", "load", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    """Six requests, room for two at a time: they wait for each other, their pins with them."""
    scheduler = scene.harness.llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.kv_cache_manager.reset_prefix_cache()
    held = pool.get_new_blocks(pool.get_num_free_blocks() - 9)
    try:
        requests = [(scene.prompt, *scene.harness.inject_op(scene.segments)) for _ in range(6)]
        outs = scene.harness.ask_many(requests, n=N_ANSWER, logprobs=3)
    finally:
        pool.free_blocks(held)
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
    out = scene.ask()
    for job in [*scene.harness.scheduler._jobs.values()]:
        job.close()
    return out


# -- the test -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", CASES, ids=[f"{c.part}: {c.fault} ({c.stage})".replace("/", "-") for c in CASES]
)
def test_cell(cell: Case, scene: Scene, record_fault) -> None:
    out = cell.run(scene)
    outcome = scene.outcome(out)
    if leaks(scene.harness):
        outcome = FaultOutcome.LEAK
    answer = out.answer or {}
    reason = answer.get("reason") or ""
    record_fault(
        FaultCell(
            cell.part, cell.fault, cell.stage, outcome, injected_tokens(out), N_MEMORY, reason
        )
    )
    assert outcome is cell.expect, (outcome, out.answer, leaks(scene.harness))
    if cell.reason is not None:
        assert reason == cell.reason.value, answer
