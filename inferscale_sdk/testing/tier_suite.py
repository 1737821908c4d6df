"""What every tier must do. A tier is done when a subclass of :class:`TierSuite` passes.

    class TestMyTier(TierSuite):
        def open_tier(self, folder, capacity_bytes):
            return MyTier(folder, capacity_bytes)

Needs pytest, and torch for the segments.
"""

# The tests' names say what they assert.
# ruff: noqa: D102

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest
import torch

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.base import Tier

__all__ = ["LAYOUT", "TierSuite", "make_key", "make_segment"]

LAYOUT = SegmentLayout(n_layers=2, n_kv_heads=2, head_dim=8, dtype=torch.bfloat16)


def make_key(name: object) -> str:
    """A well-formed key for any name."""
    return hashlib.sha1(str(name).encode(), usedforsecurity=False).hexdigest()


def make_segment(
    name: object,
    *,
    n_tokens: int = 4,
    origin: int = 3,
    variant: int = 0,
    layout: SegmentLayout = LAYOUT,
    owner: str = "",
) -> Segment:
    """A segment whose content follows from its arguments."""
    key = make_key(name)
    generator = torch.Generator().manual_seed(int(key[:8], 16) + variant)
    data = torch.randn(layout.shape(n_tokens), generator=generator).to(layout.dtype)
    return Segment(key, data, origin, token_digest=key[:32], owner=owner)


class TierSuite(ABC):
    """Inherit, and say how to open the tier."""

    clock_tick_seconds: float = 0.0
    """How long to wait between uses whose order eviction must tell."""

    overhead_bytes: int = 0
    """Bytes that the tier adds to each segment of the suite, at most."""

    @abstractmethod
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> Tier:
        """A new tier. ``folder`` is empty and the tier's own."""

    def room_for(self, n_segments: int) -> int:
        """A capacity that holds so many segments of the suite and not one more."""
        return n_segments * (make_segment("any").nbytes + self.overhead_bytes)

    def tick(self) -> None:
        """Let the tier's clock move on."""
        time.sleep(self.clock_tick_seconds)

    def test_what_was_put_comes_back_whole(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            for n_tokens in (1, 4, 33):
                segment = make_segment(n_tokens, n_tokens=n_tokens, origin=n_tokens * 7)
                tier.put(segment)
                assert tier.get(segment.key) == segment
                assert tier.contains(segment.key)
                assert segment.key in tier

    def test_unknown_keys_are_missing(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            assert tier.get(make_key("nothing")) is None
            assert not tier.contains(make_key("nothing"))
            assert not tier.delete(make_key("nothing"))
            assert list(tier.keys()) == []
            assert tier.used_bytes == 0

    def test_put_replaces(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            old, new = make_segment("a"), make_segment("a", n_tokens=9, variant=1)
            tier.put(old)
            used = tier.used_bytes
            tier.put(new)
            assert tier.get(new.key) == new
            assert list(tier.keys()) == [new.key]
            assert tier.used_bytes > used
            tier.put(old)
            assert tier.used_bytes == used

    def test_delete(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            kept, dropped = make_segment("kept"), make_segment("dropped")
            tier.put(kept)
            used = tier.used_bytes
            tier.put(dropped)
            assert tier.delete(dropped.key)
            assert not tier.delete(dropped.key)
            assert tier.get(dropped.key) is None
            assert not tier.contains(dropped.key)
            assert tier.get(kept.key) == kept
            assert tier.used_bytes == used

    def test_keys_and_clear(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            segments = [make_segment(i) for i in range(10)]
            for segment in segments:
                tier.put(segment)
            assert sorted(tier.keys()) == sorted(segment.key for segment in segments)
            tier.clear()
            assert list(tier.keys()) == []
            assert tier.used_bytes == 0
            assert tier.get(segments[0].key) is None
            tier.put(segments[0])
            assert tier.get(segments[0].key) == segments[0]

    def test_a_segment_outlives_its_place(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            tier.put(make_segment("a"))
            held = tier.get(make_key("a"))
            tier.put(make_segment("a", variant=1))
            tier.clear()
            assert held == make_segment("a")

    def test_the_budget_is_kept(self, tmp_path: Path) -> None:
        capacity = self.room_for(3)
        with self.open_tier(tmp_path, capacity) as tier:
            for i in range(12):
                segment = make_segment(i)
                tier.put(segment)
                assert tier.get(segment.key) == segment, "the newest stays"
                assert tier.capacity_bytes is not None
                assert 0 < tier.used_bytes <= tier.capacity_bytes
            assert tier.stats().evictions > 0

    def test_the_least_recently_used_goes_first(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, self.room_for(3)) as tier:
            for name in "abc":
                tier.put(make_segment(name))
                self.tick()
            assert tier.get(make_key("a")) is not None
            self.tick()
            tier.put(make_segment("d"))
            assert tier.contains(make_key("a"))
            assert tier.contains(make_key("d"))
            assert not tier.contains(make_key("b"))

    def test_what_is_larger_than_the_budget_is_refused(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, self.room_for(2)) as tier:
            tier.put(make_segment("a"))
            before = tier.used_bytes
            with pytest.raises(StoreFull, match="budget"):
                tier.put(make_segment("large", n_tokens=400))
            with pytest.raises(StoreFull):
                tier.put(make_segment("a", n_tokens=400))
            assert tier.used_bytes == before
            assert tier.get(make_key("a")) == make_segment("a")
            assert tier.get(make_key("large")) is None

    def test_stats(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            tier.put(make_segment("a"))
            tier.put(make_segment("b"))
            tier.get(make_key("a"))
            tier.get(make_key("c"))
            tier.delete(make_key("b"))
            stats = tier.stats()
            assert stats.name == tier.name
            assert (stats.segments, stats.used_bytes) == (1, tier.used_bytes)
            assert (stats.hits, stats.misses, stats.puts, stats.deletions) == (1, 1, 2, 1)
            assert (stats.evictions, stats.quarantined, stats.errors) == (0, 0, 0)
            assert stats.capacity_bytes is None
            assert stats.as_dict()["segments"] == 1
            assert min(stats.read_bytes, stats.write_bytes // 2) >= make_segment("a").nbytes
            assert 0 < stats.read_seconds < 60
            assert 0 < stats.write_seconds < 60

    def test_delete_everywhere(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            tier.put(make_segment("a"))
            assert tier.delete_everywhere(make_key("a")) >= 1
            assert tier.get(make_key("a")) is None
            assert tier.delete_everywhere(make_key("a")) == 0

    def test_owners_are_kept(self, tmp_path: Path) -> None:
        with self.open_tier(tmp_path, None) as tier:
            tier.put(make_segment("a", owner="0a" * 16))
            found = tier.get(make_key("a"))
            assert found is not None
            assert found.owner == "0a" * 16

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path, None)
        tier.close()
        tier.close()

    def test_threads(self, tmp_path: Path) -> None:
        """Readers of keys that others write, drop and evict get whole segments or none."""
        failures: list[BaseException] = []
        versions = [[make_segment(name, variant=v) for v in range(3)] for name in range(4)]
        with self.open_tier(tmp_path, self.room_for(3)) as tier:

            def work(seed: int) -> None:
                try:
                    for step in range(60):
                        of_key = versions[(seed + step) % len(versions)]
                        if (seed + step) % 7 == 0:
                            tier.delete(of_key[0].key)
                        elif seed % 2:
                            tier.put(of_key[step % 3])
                        else:
                            found = tier.get(of_key[0].key)
                            assert found is None or found in of_key
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            stats = tier.stats()
            assert (stats.quarantined, stats.errors) == (0, 0)
            assert tier.capacity_bytes is not None
            assert tier.used_bytes <= tier.capacity_bytes
