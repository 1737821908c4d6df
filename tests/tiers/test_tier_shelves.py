"""How segments lie in memory: the suite of all tiers on shelves, and an arena without leaks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from inferscale_sdk.errors import CorruptSegment, StoreFull
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.quantize import StorageDtype, dequantize, quantize
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.testing.tier_suite import LAYOUT, TierSuite, make_key, make_segment
from inferscale_sdk.tiers.arena import Arena
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.shelves import ArenaShelf, PackedShelf, PlainShelf, make_shelf


class TestInAnArena(TierSuite):
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> HostTier:
        arena = Arena(LAYOUT, (1 << 20) if capacity_bytes is None else capacity_bytes)
        return HostTier(capacity_bytes, shelf=ArenaShelf(arena))


class TestInBytesByCost(TierSuite):
    def open_tier(self, folder: Path, capacity_bytes: int | None) -> HostTier:
        return HostTier(capacity_bytes, eviction="cost")


def packed(segment: Segment, storage: StorageDtype) -> Segment:
    data = dequantize(quantize(segment.data, storage))
    return Segment(segment.key, data, segment.origin, segment.token_digest, segment.owner)


@pytest.mark.parametrize("storage", list(StorageDtype))
def test_a_host_tier_in_fewer_bytes(storage: StorageDtype) -> None:
    tier = HostTier(None, shelf=make_shelf(storage))
    segment = make_segment("a", n_tokens=64, owner="0a")
    tier.put(segment)
    assert tier.get(segment.key) == packed(segment, storage)
    assert tier.used_bytes == quantize(segment.data, storage).nbytes
    assert tier.stats().write_bytes == tier.used_bytes


def test_what_cannot_be_packed_is_refused_and_nothing_leaks() -> None:
    tier = HostTier(None, shelf=PackedShelf(StorageDtype.INT8))
    data = make_segment("a").data.clone()
    data[0, 0, 0, 0, 0] = float("nan")
    with pytest.raises(CorruptSegment, match="not finite"):
        tier.put(Segment(make_key("a"), data, 0, "d"))
    assert tier.used_bytes == 0
    assert list(tier.keys()) == []


@pytest.mark.parametrize("shelf", [PlainShelf(), PackedShelf(StorageDtype.FP8)])
def test_a_shelf_is_a_mapping(shelf: PlainShelf | PackedShelf) -> None:
    segment = make_segment("a")
    with pytest.raises(ValueError, match="cannot be stored as"):
        shelf["x"] = segment
    shelf[segment.key] = segment
    assert dict(shelf) == {segment.key: shelf[segment.key]}
    assert shelf.discard(segment.key)
    assert not shelf.discard(segment.key)
    with pytest.raises(KeyError):
        shelf[segment.key]


def test_an_arena_takes_exactly_as_many_tokens_as_it_says() -> None:
    arena = Arena(LAYOUT, 10 * LAYOUT.bytes_per_token + 7)
    assert (arena.capacity_tokens, arena.capacity_bytes) == (10, 10 * LAYOUT.bytes_per_token)
    segments = [make_segment(i, n_tokens=n) for i, n in enumerate((3, 4, 3))]
    slots = [arena.store(segment.data) for segment in segments]
    assert arena.free_tokens == 0
    with pytest.raises(StoreFull, match="1 tokens do not fit into an arena with 0 of 10"):
        arena.store(make_segment("more", n_tokens=1).data)
    arena.free(slots[1])
    # The freed slots lie between others: a segment need not lie in one piece.
    arena.free(slots[0])
    again = make_segment("again", n_tokens=7)
    place = arena.store(again.data)
    assert arena.load(place).equal(again.data)
    assert arena.load(slots[2]).equal(segments[2].data)


def test_an_arena_refuses_another_layout() -> None:
    arena = Arena(LAYOUT, 1 << 16)
    other = SegmentLayout(2, 2, 4, torch.bfloat16)
    with pytest.raises(CorruptSegment, match="does not fit this model's"):
        arena.store(make_segment("a", layout=other).data)
    assert arena.free_tokens == arena.capacity_tokens
    tier = HostTier(1 << 16, shelf=ArenaShelf(arena))
    with pytest.raises(CorruptSegment):
        tier.put(make_segment("a", layout=other))
    assert (tier.used_bytes, list(tier.keys())) == (0, [])


def test_an_arena_never_leaks_a_slot() -> None:
    rng = random.Random(5)
    capacity = 64 * LAYOUT.bytes_per_token
    arena = Arena(LAYOUT, capacity)
    tier = HostTier(capacity, shelf=ArenaShelf(arena))
    kept: dict[str, Segment] = {}
    for step in range(3000):
        name = rng.randrange(30)
        if rng.random() < 0.2:
            tier.delete(make_key(name))
            kept.pop(make_key(name), None)
        else:
            segment = make_segment(name, n_tokens=rng.randrange(1, 20), variant=step % 3)
            tier.put(segment)
            kept[segment.key] = segment
        here = set(tier.keys())
        kept = {key: segment for key, segment in kept.items() if key in here}
        assert set(kept) == here
        used = sum(segment.n_tokens for segment in kept.values())
        assert arena.free_tokens == arena.capacity_tokens - used
        assert tier.used_bytes == used * LAYOUT.bytes_per_token
        if kept and step % 10 == 0:
            key = rng.choice(sorted(kept))
            assert tier.get(key) == kept[key]
    tier.clear()
    assert arena.free_tokens == arena.capacity_tokens


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_an_arena_on_a_gpu_and_a_pinned_one() -> None:
    segment = make_segment("a", n_tokens=9)
    device = Arena(LAYOUT, 1 << 16, "cuda")
    found = device.load(device.store(segment.data))
    assert found.device.type == "cuda"
    assert found.cpu().equal(segment.data)
    assert Arena(LAYOUT, 1 << 16)._data.is_pinned()
