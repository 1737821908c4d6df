"""Budgets of what others write, too; and what eviction learns from files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.errors import ConfigurationError, StoreFull
from inferscale_sdk.kv.cipher import Cipher
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.testing.tier_suite import TierSuite, make_key, make_segment
from inferscale_sdk.tiers import folder
from inferscale_sdk.tiers.budget import Budget, Stored
from inferscale_sdk.tiers.coding import Tag
from inferscale_sdk.tiers.disk import DiskTier

SIZE = make_segment("any").nbytes + 512


def no_tag(key: str) -> Tag:
    raise AssertionError(f"nobody needs to know whose {key} is")


def test_without_owners_and_costs_no_file_is_opened() -> None:
    budget = Budget("disk", 100)
    found = [Stored(f"k{i}", 30, float(i)) for i in range(5)]
    assert not budget.wants_tags
    assert budget.victims(found, no_tag, keep="k4") == ["k0", "k1"]
    assert (budget.used_bytes, budget.segments) == (150, 5)
    assert Budget("disk", None, eviction="cost").wants_tags is False


@pytest.mark.parametrize("seed", range(20))
def test_lru_victims_are_the_oldest_that_must_go(seed: int) -> None:
    """Against the definition: drop the oldest until the rest is below the low-water mark."""
    rng = random.Random(seed)
    found = [Stored(f"k{i}", rng.randrange(1, 40), rng.random()) for i in range(30)]
    keep = rng.choice(found).key
    limit = 200
    order = sorted(found, key=lambda s: (s.key == keep, s.used_at))
    wanted, total = [], sum(s.nbytes for s in found)
    for stored in order:
        if total <= limit * 0.9:
            break
        total -= stored.nbytes
        wanted.append(stored.key)
    assert Budget("disk", limit).victims(found, no_tag, keep=keep) == wanted


def test_owners_above_their_budget_lose_their_own_and_only_then_all_are_looked_at() -> None:
    tags = {f"a{i}": Tag("0a") for i in range(6)} | {f"b{i}": Tag("0b") for i in range(2)}
    found = [Stored(key, 10, float(n)) for n, key in enumerate(["b0", *sorted(tags)[:6], "b1"])]
    budget = Budget("disk", 1000, 40)
    gone = budget.victims(found, tags.__getitem__, keep="b1")
    assert gone == ["a0", "a1", "a2"]
    tight = Budget("disk", 45, 40)
    assert tight.victims(found, tags.__getitem__, keep="b1") == ["a0", "a1", "a2", "b0"]


@pytest.mark.parametrize(
    "arguments", [{"capacity_bytes": -1}, {"owner_bytes": -5}, {"eviction": "random"}]
)
def test_bad_budgets_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Budget("disk", **{"capacity_bytes": None, **arguments})  # type: ignore[arg-type]


def test_a_segment_larger_than_its_owner_s_budget_is_refused(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, "model", owner_bytes=SIZE // 4)
    with pytest.raises(StoreFull, match=r"budget of each owner is \d+; raise the budget"):
        tier.put(make_segment("a", owner="0a"))
    tier.put(make_segment("a"))
    assert tier.stats().puts == 1


class TestOwnedDisk(TierSuite):
    """The suite again, with everything switched on."""

    clock_tick_seconds = 0.02
    overhead_bytes = 700

    def open_tier(self, folder: Path, capacity_bytes: int | None) -> DiskTier:
        pytest.importorskip("cryptography")
        return DiskTier(
            folder, "model", capacity_bytes=capacity_bytes, cipher=Cipher(bytes(32)),
            eviction="cost", owner_bytes=1 << 20,
        )  # fmt: skip


@pytest.mark.parametrize("sealed", [False, True])
def test_a_new_process_learns_from_the_files_whose_they_are(tmp_path: Path, sealed: bool) -> None:
    cipher = Cipher(bytes(32)) if sealed else None
    first = DiskTier(tmp_path, "model", cipher=cipher)
    for i in range(3):
        first.put(make_segment(i, owner="0a"))
    first.put(make_segment("other", owner="0b"))
    again = DiskTier(tmp_path, "model", cipher=cipher, owner_bytes=3 * SIZE)
    again.put(make_segment("new", owner="0a"))
    again.put(make_segment("newer", owner="0a"))
    assert again.contains(make_key("other"))
    assert again.contains(make_key("newer"))
    assert again._budget.used_by("0a") <= 3 * SIZE
    assert len(list(again.keys())) < 6


def test_what_is_dear_to_encode_stays_on_disk(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, "model", capacity_bytes=4 * SIZE, eviction="cost")
    tier.put(make_segment("dear", origin=5000))
    for i in range(12):
        tier.put(make_segment(i, origin=10))
    assert tier.contains(make_key("dear"))
    assert tier.stats().evictions >= 8


def test_an_encrypted_disk(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    tier = DiskTier(tmp_path, "model", cipher=Cipher(bytes(32)))
    segment = make_segment("a", owner="0a")
    tier.put(segment)
    raw = tier.path(segment.key).read_bytes()
    assert segment.token_digest.encode() not in raw
    assert b"0a" * 2 not in raw[:200]
    for wrong in (
        DiskTier(tmp_path, "model"),
        DiskTier(tmp_path, "model", cipher=Cipher(b"x" * 32)),
    ):
        assert wrong.get(segment.key) is None
        assert (wrong.stats().wrong_key, wrong.stats().quarantined) == (1, 0)
    assert tier.get(segment.key) == segment
    tier.path(segment.key).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert tier.get(segment.key) is None
    assert tier.stats().quarantined == 1
    for path in [tmp_path, *tmp_path.rglob("*")][1:]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_sealed_file_serves_in_its_own_place_only(tmp_path: Path) -> None:
    """Shares of two ranks have one shape and one key; nothing else would tell them apart."""
    pytest.importorskip("cryptography")
    cipher, segment = Cipher(bytes(32)), make_segment("a")

    def rank(n: int, division: str = "tp2pp1", **given: Any) -> DiskTier:
        return DiskTier(tmp_path, "model", rank=n, division=division, cipher=cipher, **given)

    rank(0).put(segment)
    good = rank(0).path(segment.key).read_bytes()
    others = [rank(1), rank(0, "tp4pp1"), rank(0, storage=StorageDtype.INT8)]
    for other in others:
        path = other.path(segment.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(good)
        (entry,) = (one for one in folder.segments(tmp_path) if one.path == path)
        damage = folder.verify(entry, tmp_path, cipher=cipher)
        assert damage is not None and "another place" in damage.reason
        assert other.get(segment.key) is None
        assert other.stats().quarantined == 1
    assert rank(0).get(segment.key) == segment
