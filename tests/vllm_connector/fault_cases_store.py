"""Faults of the store on disk and of host memory."""

from __future__ import annotations

import dataclasses
import errno
import resource
import time
from collections.abc import Callable
from typing import Any

from connector_harness import Outcome
from fault_scene import CASES, EXACT, TEXT, Case, Scene, case

from inferscale_sdk.errors import StoreError, StoreFull
from inferscale_sdk.kv.codec import dump
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import Reason
from inferscale_sdk.vllm_connector.index import ABSENCE_SECONDS

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


@case("two servers", "somebody deletes the files", "read", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    for key in scene.keys:
        scene.file(key).unlink()
    return scene.ask()  # still in this one's memory


@case("two servers", "the other one is told to forget", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.tiers.disk import DiskTier

    scene.encode_again("forgotten elsewhere")
    with DiskTier(scene.harness.disk, scene.harness.fingerprint) as other:
        for key in scene.keys:
            assert other.delete_everywhere(key)
    time.sleep(1.1)  # it is looked at once a second
    out = scene.ask()
    index = scene.harness.scheduler._core.index
    assert not any(index.get(key) for key in scene.keys)
    assert not any(key in scene.harness.worker._resident for key in scene.keys)
    return out


@case("two servers", "the other one evicts while this one reads", "read", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    scene.harness.drop_resident()
    gone: list[str] = []

    def evict(key: str) -> None:
        if key == scene.victim:
            scene.file(key).unlink()
            gone.append(key)

    with scene.tier.failing(before_get=evict):
        out = scene.ask()
    assert gone == [scene.victim]
    return out


@case("two servers", "both write the same segments", "encode", EXACT, Reason.OK)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.tiers.disk import DiskTier

    with DiskTier(scene.harness.disk, scene.harness.fingerprint) as other:
        for key in scene.keys:
            other.put(scene.harness.resident(key))
    scene.harness.drop_resident()
    return scene.ask()
