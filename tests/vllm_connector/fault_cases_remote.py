"""Faults of the remote tier: a real Redis or Valkey server that is broken on purpose."""

from __future__ import annotations

import hashlib
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from connector_harness import Outcome
from fault_cases_store import flipped
from fault_scene import EXACT, TEXT, Scene, case

from inferscale_sdk.protocol import Reason
from inferscale_sdk.testing.proxy import proxy
from inferscale_sdk.testing.redis_server import RedisServer
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects


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
    limit = [1 << 40]

    def cut(sent: int, upstream: socket.socket) -> bytes | None:
        return upstream.recv(65_536) if sent < limit[0] else None

    with proxy(scene.redis.port, cut) as port:
        Remote.below(scene, port)
        limit[0] = 300_000  # bytes, which is less than one segment
        return scene.ask()
