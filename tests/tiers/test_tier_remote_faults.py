"""Remote stores that are down, slow, or break off in the middle: misses, never exceptions."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreError
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.testing.proxy import proxy
from inferscale_sdk.testing.redis_server import RedisServer, running_redis
from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.tiers.breaker import Breaker, Deadline, Late
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects
from inferscale_sdk.tiers.remote_base import ObjectStore, StoredObject

pytest.importorskip("redis")

SEGMENT = make_segment("a", n_tokens=400)
FAST = RemoteLimits(connect_timeout_seconds=0.3, timeout_seconds=0.3, cooldown_seconds=0.5)


class DictObjects(ObjectStore):
    """A store in this process, with a gate that may hold calls up or fail them."""

    address = "dict://"

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.gate: Callable[[str], None] = lambda verb: None
        self.calls: list[str] = []

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        self.gate(verb)

    def get(self, name: str) -> bytes | None:
        self._called("get")
        return self.data.get(name)

    def head(self, name: str, nbytes: int) -> bytes | None:
        self._called("head")
        data = self.data.get(name)
        return None if data is None else data[:nbytes]

    def put(self, name: str, data: bytes, ttl_seconds: float | None) -> int | None:
        self._called("put")
        old = self.data.get(name)
        self.data[name] = data
        return None if old is None else len(old)

    def size(self, name: str) -> int | None:
        self._called("size")
        data = self.data.get(name)
        return None if data is None else len(data)

    def delete(self, name: str) -> int | None:
        self._called("delete")
        data = self.data.pop(name, None)
        return None if data is None else len(data)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        self._called("objects")
        for name, data in list(self.data.items()):
            if name.startswith(prefix):
                yield StoredObject(name, len(data))

    def shards(self) -> list[str]:
        self._called("shards")
        return sorted({"/".join(name.split("/")[:2]) for name in self.data})


def fail(verb: str) -> None:
    raise ConnectionResetError(f"{verb} at redis://:hunter2@host failed")


@pytest.fixture
def objects() -> DictObjects:
    return DictObjects()


@pytest.fixture
def tier(objects: DictObjects) -> Iterator[RemoteTier]:
    with RemoteTier(objects, "model", limits=FAST) as tier:
        yield tier


def test_a_store_that_fails_is_a_miss_and_is_left_alone_for_a_while(
    tier: RemoteTier, objects: DictObjects, caplog: pytest.LogCaptureFixture
) -> None:
    tier.put(SEGMENT)
    objects.gate = fail
    objects.calls.clear()
    with caplog.at_level(logging.DEBUG):
        for _ in range(20):
            assert tier.get(SEGMENT.key) is None
    assert objects.calls == ["get", "get"], "two failures, then silence"
    assert tier.is_down
    assert not tier.contains(SEGMENT.key)
    assert list(tier.keys()) == []
    with pytest.raises(StoreError, match="left alone"):
        tier.put(SEGMENT)
    stats = tier.stats()
    assert (stats.misses, stats.errors, stats.puts) == (20, 2, 1)
    assert [r.levelname for r in caplog.records].count("WARNING") == 1
    assert "hunter2" not in caplog.text
    objects.gate = lambda verb: None
    assert tier.get(SEGMENT.key) is None, "not before the cool-down is over"
    time.sleep(FAST.cooldown_seconds + 0.05)
    assert tier.get(SEGMENT.key) == SEGMENT
    assert not tier.is_down


def test_a_store_that_hangs_costs_the_limit_twice_and_then_nothing(
    tier: RemoteTier, objects: DictObjects
) -> None:
    release = threading.Event()
    objects.gate = lambda verb: release.wait(10) and None
    started = time.monotonic()
    for _ in range(50):
        assert tier.get(SEGMENT.key) is None
    assert 0.5 < time.monotonic() - started < 1.5
    release.set()


def test_a_deletion_that_fails_is_owed_and_its_segment_not_served(
    tier: RemoteTier, objects: DictObjects
) -> None:
    tier.put(SEGMENT)
    tier.put(make_segment("b"))
    objects.gate = lambda verb: fail(verb) if verb in ("delete", "shards") else None
    with pytest.raises(StoreError, match="removed as soon as the store answers"):
        tier.delete_everywhere(SEGMENT.key)
    assert tier.get(SEGMENT.key) is None
    assert not tier.contains(SEGMENT.key)
    assert len(objects.data) == 2
    objects.gate = lambda verb: None
    assert tier.get(make_key("b")) is not None  # the first call that works settles it
    assert len(objects.data) == 1
    assert tier.get(SEGMENT.key) is None
    tier.put(SEGMENT)
    assert tier.get(SEGMENT.key) == SEGMENT


def test_what_is_owed_at_the_end_is_made_up_for(objects: DictObjects) -> None:
    tier = RemoteTier(objects, "model", limits=FAST)
    for i in range(50):
        tier.put(make_segment(i))
    objects.gate = lambda verb: fail(verb) if verb == "delete" else None
    for i in range(50):
        with pytest.raises(StoreError):
            tier.delete(make_key(i))
    objects.gate = lambda verb: None
    time.sleep(FAST.cooldown_seconds + 0.05)
    assert tier.get(make_key("nothing")) is None
    tier.close()
    assert objects.data == {}


def test_a_write_that_lands_late_does_not_bring_back_what_was_deleted(
    tier: RemoteTier, objects: DictObjects
) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow_put(verb: str) -> None:
        if verb == "put":
            begun.set()
            assert release.wait(10)

    objects.gate = slow_put
    with pytest.raises(StoreError, match=r"no answer within 0\.3 s"):
        tier.put(SEGMENT)
    assert begun.is_set()
    assert not tier.delete(SEGMENT.key), "it has not landed yet"
    release.set()
    deadline = time.monotonic() + 10
    while objects.calls.count("delete") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tier.get(SEGMENT.key) is None
    assert objects.data == {}
    objects.gate = lambda verb: None
    tier.put(SEGMENT)
    assert tier.get(SEGMENT.key) == SEGMENT


def test_a_deletion_during_a_write_wins(tier: RemoteTier, objects: DictObjects) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow_put(verb: str) -> None:
        if verb == "put":
            begun.set()
            assert release.wait(0.2) or True

    objects.gate = slow_put
    writer = threading.Thread(target=tier.put, args=(SEGMENT,))
    writer.start()
    assert begun.wait(10)
    tier.delete(SEGMENT.key)
    writer.join()
    assert tier.get(SEGMENT.key) is None
    assert objects.data == {}


def through(port: int, limits: RemoteLimits = FAST) -> RemoteTier:
    return RemoteTier(open_objects(f"redis://127.0.0.1:{port}/0", limits), "model", limits=limits)


def test_a_reset_in_the_middle_of_a_transfer_is_a_miss(redis_server: RedisServer) -> None:
    with through(redis_server.port) as straight:
        straight.put(SEGMENT)

    def cut(sent: int, upstream: socket.socket) -> bytes | None:
        return None if sent > 1000 else upstream.recv(min(4096, SEGMENT.nbytes // 4))

    with proxy(redis_server.port, cut) as port, through(port) as tier:
        assert tier.get(SEGMENT.key) is None
        stats = tier.stats()
        assert (stats.misses, stats.errors, stats.quarantined) == (1, 1, 0)
    with through(redis_server.port) as straight:
        assert straight.get(SEGMENT.key) == SEGMENT
        straight.delete(SEGMENT.key)


def test_a_transfer_that_drips_is_given_up_after_the_limit(redis_server: RedisServer) -> None:
    """Every single wait is short; the whole is not."""
    with through(redis_server.port) as straight:
        straight.put(SEGMENT)

    def drip(sent: int, upstream: socket.socket) -> bytes | None:
        time.sleep(0.05)
        return upstream.recv(20 if sent > 200 else 4096)

    with proxy(redis_server.port, drip) as port, through(port) as tier:
        started = time.monotonic()
        assert tier.get(SEGMENT.key) is None
        assert time.monotonic() - started < 2 * FAST.timeout_seconds + 0.5
        assert tier.stats().errors == 1
    with through(redis_server.port) as straight:
        straight.delete(SEGMENT.key)


@pytest.mark.usefixtures("redis_server")
def test_a_server_that_dies_and_comes_back(tmp_path: Path) -> None:
    with running_redis(tmp_path, password="open sesame") as server:
        with RemoteTier(open_objects(server.url, FAST), "model", limits=FAST) as tier:
            tier.put(SEGMENT)
            assert tier.get(SEGMENT.key) == SEGMENT
            server.stop()
            started = time.monotonic()
            for _ in range(30):
                assert tier.get(SEGMENT.key) is None
                with pytest.raises(StoreError) as caught:
                    tier.put(SEGMENT)
                assert "sesame" not in str(caught.value)
            assert time.monotonic() - started < 2.0
            server.start()
            time.sleep(FAST.cooldown_seconds + 0.1)
            assert tier.get(SEGMENT.key) is None, "its memory is gone"
            tier.put(SEGMENT)
            assert tier.get(SEGMENT.key) == SEGMENT


@pytest.mark.usefixtures("redis_server")
def test_a_wrong_password_is_a_miss(tmp_path: Path) -> None:
    with running_redis(tmp_path, password="open sesame") as server:
        url = f"redis://:guess@127.0.0.1:{server.port}/0"
        with RemoteTier(open_objects(url, FAST), "model", limits=FAST) as tier:
            assert tier.get(SEGMENT.key) is None
            assert tier.stats().errors == 1


def test_the_breaker_lets_one_try_after_the_cool_down() -> None:
    now = [0.0]
    breaker = Breaker(2, 10.0, clock=lambda: now[0])
    assert breaker.allows()
    assert not breaker.failed()
    assert breaker.allows()
    assert breaker.failed()
    assert breaker.is_open
    assert not breaker.allows()
    now[0] = 10.1
    assert breaker.allows()
    assert not breaker.allows(), "one at a time"
    assert not breaker.failed(), "it was open already"
    assert not breaker.allows()
    now[0] = 20.3
    assert breaker.allows()
    assert breaker.succeeded()
    assert breaker.allows()
    assert not breaker.is_open
    assert not breaker.succeeded()


def test_a_deadline_gives_back_results_and_errors() -> None:
    deadline = Deadline(2, 5.0)
    assert deadline.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        deadline.run(lambda: 1 // 0)
    deadline.close()


def test_a_call_that_never_started_is_reported_as_over_at_once() -> None:
    deadline, release, late = Deadline(1, 0.1), threading.Event(), []
    with pytest.raises(Late):
        deadline.run(lambda: release.wait(10), on_late=lambda: late.append("first"))
    with pytest.raises(Late):
        deadline.run(lambda: late.append("never"), on_late=lambda: late.append("second"))
    assert late == ["second"]
    release.set()
    assert deadline.run(lambda: 1, timeout_seconds=5) == 1
    assert late == ["second", "first"]
    deadline.close()


def test_a_store_that_does_not_answer_is_no_proof_of_absence() -> None:
    objects = DictObjects()
    tier = RemoteTier(objects, "model", limits=FAST)
    tier.put(make_segment("a"))
    assert tier.locate([make_key("a"), make_key("b")]) == {make_key("a")}

    def down(verb: str) -> None:
        raise ConnectionError("no route")

    objects.gate = down
    with pytest.raises(StoreError):
        tier.delete(make_key("a"))
    assert not tier.contains(make_key("a"))  # not served any more
    with pytest.raises(StoreError, match="cannot be asked"):
        tier.locate([make_key("a")])
    objects.gate = lambda verb: None
    time.sleep(FAST.cooldown_seconds)
    assert tier.locate([make_key("a")]) == {make_key("a")}  # owed, and still there
    tier.close()
    assert objects.data == {}


def test_copies_under_other_shards_are_found_where_they_would_be_deleted() -> None:
    objects = DictObjects()
    for rank in (0, 1):
        RemoteTier(objects, "model", rank=rank).put(make_segment("a"))
    tier = RemoteTier(objects, "model", storage=StorageDtype.INT8)
    assert not tier.contains(make_key("a"))
    assert tier.locate([make_key("a")]) == {make_key("a")}
    assert tier.delete_everywhere(make_key("a")) == 2
    assert tier.locate([make_key("a")]) == set()
