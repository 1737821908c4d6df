"""Tiers above tiers: the suite of all tiers, promotion, write-through and -back, deletion."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreError, StoreFull
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.shelves import make_shelf
from inferscale_sdk.tiers.tiered import TieredStore


class TestTieredStore(TierSuite):
    clock_tick_seconds = 0.02
    overhead_bytes = 512

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> TieredStore:
        # The disk decides what is kept; the host holds one or two segments of the suite.
        host = None if capacity_bytes is None else self.room_for(1)
        return TieredStore(HostTier(host), DiskTier(folder, "model", capacity_bytes=capacity_bytes))


class TestHostAlone(TierSuite):
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> TieredStore:
        return TieredStore(HostTier(capacity_bytes))

    def test_stats(self, tmp_path: Path) -> None:
        store = self.open_tier(tmp_path, None)
        store.put(make_segment("a"))
        assert store.stats() == store.host.stats() == store.tier_stats()["host"]


@pytest.fixture
def store(tmp_path: Path) -> TieredStore:
    return TieredStore(HostTier(None), DiskTier(tmp_path, "model"))


def test_put_writes_through_and_get_promotes(store: TieredStore) -> None:
    segment = make_segment("a")
    store.put(segment)
    assert store.host.contains(segment.key)
    assert store.disk is not None
    assert store.disk.contains(segment.key)
    store.host.clear()
    assert store.get(segment.key) == segment
    assert store.host.get(segment.key) == segment
    assert store.tier_stats()["disk"].hits == 1
    store.get(segment.key)
    assert store.tier_stats()["disk"].hits == 1


def test_pins_hold_in_host_memory(tmp_path: Path) -> None:
    one = make_segment("a")
    store = TieredStore(HostTier(one.nbytes), DiskTier(tmp_path, "model"))
    store.put(one)
    store.pin([one.key])
    store.put(make_segment("b"))  # goes to disk only
    assert store.host.contains(one.key)
    assert store.get(make_key("b")) == make_segment("b")
    assert store.host.contains(one.key)
    store.release([one.key])
    store.get(make_key("b"))
    assert list(store.host.keys()) == [make_key("b")]


def test_one_tier_that_takes_it_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = make_segment("a")
    no_host = TieredStore(HostTier(0), DiskTier(tmp_path, "model"))
    no_host.put(segment)
    assert no_host.get(segment.key) == segment
    no_disk = TieredStore(HostTier(None), DiskTier(tmp_path, "other", capacity_bytes=1))
    no_disk.put(segment)
    assert no_disk.get(segment.key) == segment
    assert f"segment {segment.key} is not in disk" in caplog.text
    neither = TieredStore(HostTier(0), DiskTier(tmp_path, "third", capacity_bytes=1))
    with pytest.raises(StoreFull):
        neither.put(segment)


def test_a_disk_that_fails_is_reported_when_memory_is_full_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskTier(tmp_path, "model")

    def fail(segment: Segment) -> None:
        raise StoreError("no")

    monkeypatch.setattr(disk, "put", fail)
    TieredStore(HostTier(None), disk).put(make_segment("a"))
    with pytest.raises(StoreError, match="no"):
        TieredStore(HostTier(0), disk).put(make_segment("a"))


def test_a_deletion_wins_against_a_promotion_under_way(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = make_segment("a")
    store.put(segment)
    store.host.clear()
    assert store.disk is not None
    read, deleted = threading.Event(), threading.Event()
    plain_get = store.disk.get

    def slow_get(key: str) -> Segment | None:
        found = plain_get(key)
        read.set()
        assert deleted.wait(10)
        return found

    monkeypatch.setattr(store.disk, "get", slow_get)
    answers: list[Segment | None] = []
    reader = threading.Thread(target=lambda: answers.append(store.get(segment.key)))
    reader.start()
    assert read.wait(10)
    assert store.delete(segment.key)
    deleted.set()
    reader.join()
    assert answers == [None]
    assert not store.contains(segment.key)
    assert not store.host.contains(segment.key)


def test_a_deletion_wins_against_a_read_that_begins_while_it_runs() -> None:
    """The upper tiers are passed already, and the lower one still has it."""
    disk, remote = Spare("disk"), Spare("remote")
    store = TieredStore(HostTier(None), disk, remote)
    segment = make_segment("a")
    store.put(segment)
    plain_delete = remote.delete
    answers: list[Segment | None] = []

    def read_first(key: str) -> bool:
        answers.append(store.get(key))
        return plain_delete(key)

    remote.delete = read_first  # type: ignore[method-assign]
    assert store.delete(segment.key)
    assert answers == [None]
    assert [tier.contains(segment.key) for tier in store.tiers] == [False, False, False]
    remote.delete = plain_delete  # type: ignore[method-assign]
    store.put(segment)
    assert store.get(segment.key) == segment


def test_a_deletion_wins_against_a_write_under_way() -> None:
    disk = Spare("disk")
    store = TieredStore(HostTier(None), disk)
    segment = make_segment("a")
    plain_put = disk.put

    def delete_first(segment: Segment) -> None:
        assert store.delete(segment.key)  # it is in the host already, and not here yet
        plain_put(segment)

    disk.put = delete_first  # type: ignore[method-assign]
    store.put(segment)
    assert [tier.contains(segment.key) for tier in store.tiers] == [False, False]
    disk.put = plain_put  # type: ignore[method-assign]
    store.put(segment)
    assert [tier.contains(segment.key) for tier in store.tiers] == [True, True]


class TestThreeTiersWrittenBack(TierSuite):
    clock_tick_seconds = 0.02
    overhead_bytes = 512

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> TieredStore:
        host = None if capacity_bytes is None else self.room_for(1)
        return Flushed(
            HostTier(host),
            DiskTier(folder / "disk", "model", capacity_bytes=capacity_bytes),
            # Uses that are served above do not reach it, so it cannot be the one that decides.
            DiskTier(folder / "far", "model", capacity_bytes=host),
            write_policy="back",
        )

    @pytest.mark.skip("the thread that writes learns it, not the caller; see below")
    def test_what_is_larger_than_the_budget_is_refused(self, tmp_path: Path) -> None: ...

    def test_what_does_not_fit_below_is_said_in_the_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with self.open_tier(tmp_path, self.room_for(2)) as tier:
            tier.put(make_segment("large", n_tokens=400))
            assert tier.get(make_key("large")) is None
        assert "is not written to disk" in caplog.text


class Flushed(TieredStore):
    """Written back, but for tests that look below right afterwards."""

    def put(self, segment: Segment) -> None:
        super().put(segment)
        self.flush()


class Spare(HostTier):
    """A lower tier in this process's memory, as another storage dtype's."""

    in_memory = False

    def __init__(self, name: str, storage: StorageDtype = StorageDtype.AS_CACHE) -> None:
        super().__init__(None, shelf=make_shelf(storage))
        self.name = name
        self.storage = storage


def test_what_lies_at_the_bottom_is_promoted_to_all_above() -> None:
    tiers = [HostTier(None), Spare("disk"), Spare("remote")]
    store = TieredStore(*tiers)
    store.put(make_segment("a"))
    for tier in tiers[:2]:
        tier.clear()
    assert store.get(make_key("a")) == make_segment("a")
    assert [tier.contains(make_key("a")) for tier in tiers] == [True] * 3
    assert set(store.tier_stats()) == {"host", "disk", "remote"}


@pytest.mark.parametrize(
    ("middle", "bottom", "goes_to_the_middle"),
    [
        ("as_cache", "as_cache", True),
        ("as_cache", "int8", False),
        ("fp8", "int8", False),
        ("int8", "int8", True),
        ("int8", "as_cache", True),
    ],
)
def test_what_is_not_exact_does_not_pass_for_it(
    middle: str, bottom: str, goes_to_the_middle: bool
) -> None:
    disk = Spare("disk", StorageDtype(middle))
    remote = Spare("remote", StorageDtype(bottom))
    store = TieredStore(HostTier(None), disk, remote)
    remote.put(make_segment("a"))
    assert store.get(make_key("a")) is not None
    assert store.host.contains(make_key("a"))
    assert disk.contains(make_key("a")) is goes_to_the_middle


def test_deleting_reaches_every_tier_also_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = [HostTier(None), Spare("disk"), Spare("remote")]
    store = TieredStore(*tiers)
    store.put(make_segment("a"))

    def fail(key: str) -> bool:
        raise StoreError("disk says no")

    monkeypatch.setattr(tiers[1], "delete", fail)
    with pytest.raises(StoreError, match="disk says no"):
        store.delete(make_key("a"))
    assert [tier.contains(make_key("a")) for tier in tiers] == [False, True, False]


def test_a_damaged_copy_that_stays_keeps_no_other_tier_from_deleting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, remote = DiskTier(tmp_path, "model"), Spare("remote")
    store = TieredStore(HostTier(None), disk, remote)
    store.put(make_segment("a"))

    def fail(folder: Path, key: str | None = None) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(files, "remove_quarantined", fail)
    for delete in (store.delete, store.delete_everywhere):
        with pytest.raises(StoreError, match=r"a damaged copy in .* cannot be removed"):
            delete(make_key("a"))
        assert [tier.contains(make_key("a")) for tier in store.tiers] == [False] * 3


def test_capacities_add_up(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, "model", capacity_bytes=50)
    assert TieredStore(HostTier(10), disk).capacity_bytes == 60
    assert TieredStore(HostTier(10), disk, Spare("remote")).capacity_bytes is None
    assert TieredStore(HostTier(10), None).tiers[1:] == ()
