"""Writes that nobody waits for: the suite of all tiers, order, room, deletions, failures."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreError
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.write_behind import WriteBehind


class Flushed(WriteBehind):
    def put(self, segment: Segment) -> None:
        super().put(segment)
        self.flush()


class TestFlushed(TierSuite):
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> Flushed:
        return Flushed(HostTier(capacity_bytes))

    @pytest.mark.skip("the thread that writes learns it, not the caller")
    def test_what_is_larger_than_the_budget_is_refused(self, tmp_path: Path) -> None: ...


class Gated(HostTier):
    """A tier whose writes wait for a gate, and can be made to fail."""

    def __init__(self) -> None:
        super().__init__(None)
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.order: list[str] = []
        self.error: Exception | None = None
        self.closed = False

    def put(self, segment: Segment) -> None:
        self.begun.set()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.order.append(segment.key)
        super().put(segment)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gated() -> Gated:
    return Gated()


def test_what_waits_is_found_and_written_in_order(gated: Gated) -> None:
    tier = WriteBehind(gated)
    for name in "abc":
        tier.put(make_segment(name))
    assert tier.get(make_key("b")) == make_segment("b")
    assert make_key("c") in tier
    assert set(tier.keys()) == {make_key(name) for name in "abc"}
    assert tier.waiting_bytes == 3 * make_segment("a").nbytes
    assert tier.stats().hits == 1
    assert tier.name == "host"
    gated.gate.set()
    tier.flush()
    assert gated.order == [make_key(name) for name in "abc"]
    assert tier.waiting_bytes == 0
    tier.close()


def test_the_newest_of_one_key_is_written_last(gated: Gated) -> None:
    tier = WriteBehind(gated)
    tier.put(make_segment("a"))
    assert gated.begun.wait(10)
    newer = make_segment("a", variant=1)
    tier.put(newer)
    assert tier.get(newer.key) == newer
    gated.gate.set()
    tier.flush()
    assert gated.get(newer.key) == newer
    tier.close()


def test_a_deletion_wins_over_what_waits_and_over_what_is_being_written(gated: Gated) -> None:
    tier = WriteBehind(gated)
    for name in "ab":
        tier.put(make_segment(name))
    assert gated.begun.wait(10)  # a is being written, b waits
    assert tier.delete(make_key("b"))
    deleted: list[bool] = []
    deleter = threading.Thread(target=lambda: deleted.append(tier.delete(make_key("a"))))
    deleter.start()
    time.sleep(0.05)
    assert deleted == [], "it waits until the write is over"
    gated.gate.set()
    deleter.join()
    assert deleted == [True]
    tier.flush()
    assert list(tier.keys()) == []
    tier.close()


@pytest.mark.parametrize(
    "limits", [{"max_segments": 2}, {"max_bytes": 2 * make_segment("any").nbytes}]
)
def test_too_much_waiting_holds_up_the_writer(gated: Gated, limits: dict[str, int]) -> None:
    tier = WriteBehind(gated, **limits)
    for name in "ab":
        tier.put(make_segment(name))
    writer = threading.Thread(target=tier.put, args=(make_segment("c"),))
    writer.start()
    time.sleep(0.05)
    assert writer.is_alive()
    assert tier.waiting_bytes == 2 * make_segment("any").nbytes
    gated.gate.set()
    writer.join(10)
    tier.flush()
    assert gated.order == [make_key(name) for name in "abc"]
    tier.close()


def test_one_segment_larger_than_the_room_goes_through(gated: Gated) -> None:
    gated.gate.set()
    tier = WriteBehind(gated, max_bytes=1)
    tier.put(make_segment("a"))
    tier.put(make_segment("b"))
    tier.close()
    assert gated.order == [make_key("a"), make_key("b")]


@pytest.mark.parametrize("error", [StoreError("full"), RuntimeError("a bug")])
def test_a_write_that_fails_is_logged_and_the_next_goes_on(
    gated: Gated, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tier = WriteBehind(gated)
    gated.error = error
    gated.gate.set()
    tier.put(make_segment("a"))
    tier.flush()
    gated.error = None
    tier.put(make_segment("b"))
    tier.flush()
    assert tier.get(make_key("a")) is None
    assert gated.order == [make_key("b")]
    assert f"segment {make_key('a')} is not written to host" in caplog.text
    tier.close()


def test_closing_writes_what_waits(gated: Gated) -> None:
    tier = WriteBehind(gated)
    for i in range(20):
        tier.put(make_segment(i))
    closer = threading.Thread(target=tier.close)
    closer.start()
    time.sleep(0.02)
    assert not gated.closed
    gated.gate.set()
    closer.join(10)
    assert gated.closed
    assert len(gated.order) == 20


def test_clearing_leaves_nothing_that_waits(gated: Gated) -> None:
    tier = WriteBehind(gated)
    for name in "abc":
        tier.put(make_segment(name))
    assert gated.begun.wait(10)
    clearer = threading.Thread(target=tier.clear)
    clearer.start()
    gated.gate.set()
    clearer.join(10)
    assert list(tier.keys()) == []
    assert tier.used_bytes == tier.waiting_bytes == 0
    tier.close()
