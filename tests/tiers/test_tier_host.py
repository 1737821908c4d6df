"""The host tier: the suite of all tiers, and pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers.host import HostTier


class TestHostTier(TierSuite):
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> HostTier:
        return HostTier(capacity_bytes)

    def test_pinned_segments_are_not_evicted(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path, self.room_for(2))
        tier.put(make_segment("a"))
        tier.put(make_segment("b"))
        tier.pin([make_key("a")])
        tier.put(make_segment("c"))
        assert set(tier.keys()) == {make_key("a"), make_key("c")}
        tier.pin([make_key("c")])
        with pytest.raises(StoreFull, match="pinned"):
            tier.put(make_segment("d"))
        assert set(tier.keys()) == {make_key("a"), make_key("c")}
        tier.release([make_key("a")])
        tier.put(make_segment("d"))
        assert set(tier.keys()) == {make_key("c"), make_key("d")}

    def test_deleting_a_pinned_segment_and_releasing_it_later(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path, self.room_for(1))
        tier.put(make_segment("a"))
        tier.pin([make_key("a")])
        assert tier.delete(make_key("a"))
        tier.put(make_segment("b"))
        tier.release([make_key("a")])
        with pytest.raises(KeyError, match="more often"):
            tier.release([make_key("a")])
        with pytest.raises(KeyError, match="not resident"):
            tier.pin([make_key("a")])

    def test_it_keeps_the_tensor_itself(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path, None)
        segment = make_segment("a")
        tier.put(segment)
        assert tier.get(segment.key) is segment
