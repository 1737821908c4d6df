"""What a Redis server may do to our bookkeeping without an object being overlooked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.testing.redis_server import BINARIES, find_redis, running_redis
from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects
from inferscale_sdk.tiers.remote_redis import RedisObjects

pytest.importorskip("redis")

KEY = make_key("a")
LIMITS = RemoteLimits(connect_timeout_seconds=5, timeout_seconds=20)
SHARDS = ["m1/r0", "m1/r1", "m2/r0-int8"]


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[RedisObjects]:
    """A server of this test's own, since its memory is limited."""
    if find_redis() is None:
        pytest.skip(f"none of {', '.join(BINARIES)} is installed")
    with running_redis(tmp_path) as server:
        opened = open_objects(server.url, LIMITS)
        assert isinstance(opened, RedisObjects)
        yield opened
        opened.close()


def fill(objects: RedisObjects) -> None:
    for shard in SHARDS:
        objects.put(f"{shard}/ab/{KEY}.ifs", b"segment", None)
    objects._client.set("of another application", "m9/r9/x")
    objects._client.set("ifs:no-segment", "")


def no_search(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("all keys were searched")


def test_shards_are_all_found_and_searched_for_once(objects: RedisObjects) -> None:
    assert objects.shards() == []
    fill(objects)
    assert objects.shards() == SHARDS
    objects._client.scan_iter = no_search
    assert objects.shards() == SHARDS
    objects.put(f"m3/r0/ab/{KEY}.ifs", b"segment", None)
    assert objects.shards() == [*SHARDS, "m3/r0"]


@pytest.mark.parametrize("begun_anew", [False, True])
def test_the_list_of_shards_may_be_evicted(objects: RedisObjects, begun_anew: bool) -> None:
    fill(objects)
    objects.shards()
    assert objects._client.delete("ifs:shards") == 1
    if begun_anew:  # the next write makes a set of its own shard alone
        objects.put(f"m1/r0/ab/{KEY}.ifs", b"segment", None)
    assert objects.shards() == SHARDS
    objects._client.scan_iter = no_search
    assert objects.shards() == SHARDS


def test_a_list_that_is_evicted_while_it_is_made_does_not_count(
    objects: RedisObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(objects)
    scan = objects._client.scan_iter

    def losing(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        found = list(scan(*args, **kwargs))
        objects._client.delete("ifs:shards")
        # Another server writes for the first time, after the search has passed.
        other = RedisObjects.put
        other(objects, f"m4/r0/ab/{KEY}.ifs", b"segment", None)
        objects._client.delete("ifs:shards")
        yield from found

    with monkeypatch.context() as patch:
        patch.setattr(objects._client, "scan_iter", losing)
        assert set(SHARDS) <= set(objects.shards())
    assert objects.shards() == [*SHARDS, "m4/r0"]


def test_a_deletion_reaches_every_rank_after_the_list_was_evicted(objects: RedisObjects) -> None:
    tiers = [RemoteTier(objects, "model", limits=LIMITS, rank=rank) for rank in range(3)]
    for tier in tiers:
        tier.put(make_segment("a"))
    tiers[0].locate([KEY])
    objects._client.delete("ifs:shards")
    assert tiers[0].locate([KEY]) == {KEY}
    objects._client.delete("ifs:shards")
    tiers[0].put(make_segment("b"))
    assert tiers[0].delete_everywhere(KEY) == 3
    assert not any(tier.contains(KEY) for tier in tiers)


def test_a_server_that_evicts_at_random(objects: RedisObjects) -> None:
    client = objects._client
    fill(objects)
    objects.shards()
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 300_000)
    for n in range(20_000):
        objects.put(f"m5/r0/ab/{n:040x}.ifs", bytes(10_000), None)
        if n % 10 == 0 and not any(m.startswith(b"done:") for m in client.smembers("ifs:shards")):
            break
    else:
        raise AssertionError("the set of shards was never evicted")
    client.config_set("maxmemory", 0)
    names = [key.decode().removeprefix("ifs:") for key in client.keys("ifs:*/*")]
    assert names
    there = {"/".join(name.split("/")[:2]) for name in names}
    assert there <= set(objects.shards())
    assert there <= set(objects.shards())


def test_a_full_server_still_deletes(objects: RedisObjects) -> None:
    tier = RemoteTier(objects, "model", limits=LIMITS)
    tier.put(make_segment("a"))
    RemoteTier(objects, "model", limits=LIMITS, rank=1).put(make_segment("a"))
    objects._client.delete("ifs:shards")
    objects._client.config_set("maxmemory-policy", "noeviction")
    objects._client.config_set("maxmemory", 1)
    assert tier.locate([KEY]) == {KEY}
    assert tier.delete_everywhere(KEY) == 2
