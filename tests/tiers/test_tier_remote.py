"""Remote tiers: the suite of all tiers on a real Redis server, on a folder and in memory."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.kv.cipher import Cipher
from inferscale_sdk.kv.quantize import StorageDtype, dequantize, quantize
from inferscale_sdk.testing.redis_server import RedisServer
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects
from inferscale_sdk.tiers.remote_base import safe_url

redis = pytest.importorskip("redis")
pytest.importorskip("fsspec")

SEGMENT = make_segment("a")
_fresh = itertools.count()


class TestRedis(TierSuite):
    overhead_bytes = 512
    clock_tick_seconds = 0.002

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> Iterator[None]:
        self.url = redis_server.url
        yield
        redis.Redis.from_url(self.url).flushdb()

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> RemoteTier:
        return RemoteTier(open_objects(self.url), "model", capacity_bytes=capacity_bytes)


class TestFolder(TierSuite):
    overhead_bytes = 512
    clock_tick_seconds = 0.02

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> RemoteTier:
        objects = open_objects(folder.as_uri())
        return RemoteTier(objects, "model", capacity_bytes=capacity_bytes)


class TestObjectsInMemory(TierSuite):
    """As in a bucket: no folders, nothing is ever half there."""

    overhead_bytes = 512
    clock_tick_seconds = 0.002

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> RemoteTier:
        objects = open_objects(f"memory://{next(_fresh)}")
        return RemoteTier(objects, "model", capacity_bytes=capacity_bytes)


@pytest.fixture(params=["redis", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield (tmp_path / "store").as_uri()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    yield server.url
    redis.Redis.from_url(server.url).flushdb()


def open_at(url: str, model: str = "model", ttl: float | None = None, **options) -> RemoteTier:
    limits = RemoteLimits(ttl_seconds=ttl)
    return RemoteTier(open_objects(url, limits), model, limits=limits, **options)


def test_another_process_finds_what_was_stored(url: str) -> None:
    with open_at(url) as first, open_at(url) as second:
        first.put(SEGMENT)
        assert second.get(SEGMENT.key) == SEGMENT
        assert list(second.keys()) == [SEGMENT.key]
        assert second.delete(SEGMENT.key)
        assert first.get(SEGMENT.key) is None


def test_models_ranks_and_storage_dtypes_do_not_see_each_other(url: str) -> None:
    others = [
        open_at(url, rank=1),
        open_at(url, "model 2"),
        open_at(url, storage=StorageDtype.INT8),
        open_at(url, storage=StorageDtype.FP8),
    ]
    here = open_at(url)
    for tier in [here, *others]:
        assert tier.get(SEGMENT.key) is None
        tier.put(SEGMENT)
    assert here.delete(SEGMENT.key)
    assert [tier.contains(SEGMENT.key) for tier in others] == [True] * 4
    here.put(SEGMENT)
    assert here.delete_everywhere(SEGMENT.key) == 5
    assert not any(tier.contains(SEGMENT.key) for tier in [here, *others])
    assert here.delete_everywhere(SEGMENT.key) == 0
    for tier in [here, *others]:
        tier.close()


@pytest.mark.parametrize("storage", list(StorageDtype))
def test_storage_dtypes(url: str, storage: StorageDtype) -> None:
    segment = make_segment("a", n_tokens=64)
    with open_at(url, storage=storage) as tier:
        tier.put(segment)
        found = tier.get(segment.key)
        assert found is not None
        assert found.data.equal(dequantize(quantize(segment.data, storage)))
        stats = tier.stats()
        assert stats.read_bytes == stats.write_bytes == stats.used_bytes
        share = stats.write_bytes / segment.nbytes
        assert share < {"as_cache": 1.2, "fp8": 0.7, "int8": 0.75, "int4": 0.75}[storage]
        assert stats.read_seconds > 0
        assert stats.write_seconds > 0


def test_segments_are_forgotten_when_their_time_is_up(url: str) -> None:
    with open_at(url, ttl=0.4) as tier, open_at(url) as forever:
        tier.put(SEGMENT)
        assert tier.get(SEGMENT.key) == SEGMENT
        time.sleep(0.6)
        assert not tier.contains(SEGMENT.key)
        assert list(tier.keys()) == []
        assert tier.get(SEGMENT.key) is None
        forever.put(SEGMENT)
        assert tier.stats().errors == 0


def raw(tier: RemoteTier, key: str) -> bytes:
    data = tier._objects.get(tier.object_name(key))
    assert data is not None
    return data


def test_encrypted_objects(url: str) -> None:
    pytest.importorskip("cryptography")
    with open_at(url, cipher=Cipher(bytes(32))) as tier:
        tier.put(SEGMENT)
        assert SEGMENT.key.encode() not in raw(tier, SEGMENT.key)
        assert tier.get(SEGMENT.key) == SEGMENT
        for wrong in (open_at(url), open_at(url, cipher=Cipher(bytes(31) + b"x"))):
            with wrong:
                assert wrong.get(SEGMENT.key) is None
                stats = wrong.stats()
                assert (stats.wrong_key, stats.misses, stats.quarantined) == (1, 1, 0)
        assert tier.get(SEGMENT.key) == SEGMENT, "it was left alone"
        with open_at(url) as plain:
            plain.put(SEGMENT)
        assert tier.get(SEGMENT.key) is None, "anybody could have written it"
        assert tier.stats().wrong_key == 1


def test_what_dead_writers_left_on_a_mount_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path}"
    with RemoteTier(open_objects(url), "model") as tier:
        tier.put(SEGMENT)
        folder = (tmp_path / tier.object_name(SEGMENT.key)).parent
        half = folder / f".{SEGMENT.key}.{0:016x}.tmp"
        other = folder / f"{SEGMENT.key}.ifs.{0:016x}.tmp"  # as on file systems without renames
        for path in (half, other):
            path.write_bytes(b"half")
        assert list(tier.keys()) == [SEGMENT.key]
        assert half.exists() and other.exists(), "they may be under way"
        RemoteTier(open_objects(url), "model").close()
        assert not half.exists() and other.exists(), "its writer's lock is free"
        os.utime(other, (0, 0))
        assert list(tier.keys()) == [SEGMENT.key]
        assert not other.exists()
        assert tier.get(SEGMENT.key) == SEGMENT


def test_another_ranks_sealed_object_is_refused(url: str) -> None:
    pytest.importorskip("cryptography")
    cipher = Cipher(bytes(32))
    with open_at(url, cipher=cipher) as mine, open_at(url, cipher=cipher, rank=1) as other:
        mine.put(SEGMENT)
        other._objects.put(other.object_name(SEGMENT.key), raw(mine, SEGMENT.key), None)
        assert other.get(SEGMENT.key) is None
        assert other.stats().quarantined == 1
        assert not other.contains(SEGMENT.key), "it is of no use to anybody there"
        assert mine.get(SEGMENT.key) == SEGMENT


@pytest.mark.parametrize("kind", ["truncated", "flipped", "empty", "foreign", "renamed"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_object_is_removed_and_counts_as_missing(
    url: str, kind: str, sealed: bool
) -> None:
    with open_at(url, cipher=Cipher(bytes(32)) if sealed else None) as tier:
        tier.put(SEGMENT)
        tier.put(make_segment("b"))
        data = raw(tier, SEGMENT.key)
        bad = {
            "truncated": data[: len(data) // 2],
            "flipped": data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
            "empty": b"",
            "foreign": b"\x89PNG" * 40,
            "renamed": raw(tier, make_key("b")),
        }[kind]
        tier._objects.put(tier.object_name(SEGMENT.key), bad, None)
        assert tier.get(SEGMENT.key) is None
        if kind == "empty" and "redis" in url:
            return  # an empty string is no key at all in Redis
        stats = tier.stats()
        if sealed and kind in ("foreign", "empty"):
            assert (stats.wrong_key, stats.quarantined) == (1, 0)
            return
        assert (stats.quarantined, stats.misses, stats.hits) == (1, 1, 0)
        assert not tier.contains(SEGMENT.key)
        tier.put(SEGMENT)
        assert tier.get(SEGMENT.key) == SEGMENT


def test_owners_lose_their_own_first(url: str) -> None:
    size = make_segment("any").nbytes + 512
    with open_at(url, owner_bytes=3 * size) as tier:
        tier.put(make_segment("other", owner="0b"))
        for i in range(8):
            tier.put(make_segment(i, owner="0a"))
            time.sleep(0.01)
        kept = set(tier.keys())
        assert make_key("other") in kept
        assert make_key(7) in kept
        assert 1 <= len(kept - {make_key("other")}) <= 3
    # Who comes later learns from the objects whose they are.
    with open_at(url, owner_bytes=3 * size) as again:
        assert again._budget.used_by("0a") > 0
        again.put(make_segment("more", owner="0a"))
        again.put(make_segment("and more", owner="0a"))
        assert again.contains(make_key("other"))
        assert again._budget.used_by("0a") <= 3 * size


def test_two_tiers_share_a_budget_by_and_by(url: str) -> None:
    size = make_segment("any").nbytes + 512
    with open_at(url, capacity_bytes=4 * size) as first:
        for i in range(4):
            first.put(make_segment(i))
        with open_at(url, capacity_bytes=4 * size) as second:
            assert second.used_bytes == first.used_bytes
            for i in range(10, 14):
                second.put(make_segment(i))
            assert second.used_bytes <= 4 * size
            assert second.stats().segments == len(list(first.keys()))


def test_a_folder_is_private(tmp_path: Path) -> None:
    with open_at((tmp_path / "store").as_uri()) as tier:
        tier.put(SEGMENT)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("redis://user:secret@host:1/0?password=x", "redis://…@host:1/0?…"),
        ("s3://bucket/path", "s3://bucket/path"),
        ("sftp://me@host/x#y", "sftp://…@host/x?…"),
        ("see redis://:p/w @:x@h and s3://k:v@b", "see redis://…@b"),
    ],
)
def test_addresses_are_shown_without_secrets(given: str, shown: str) -> None:
    assert safe_url(given) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nosuch://secret:pw@host", r"nosuch://…@host"),
        ("redis://:pw@host:notaport", r"redis://…@host"),
    ],
)
def test_bad_addresses_are_refused_without_quoting_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_objects(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "limits", [{"timeout_seconds": 0}, {"connect_timeout_seconds": -1}, {"ttl_seconds": 0}]
)
def test_limits_must_be_positive(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        RemoteLimits(**limits)
