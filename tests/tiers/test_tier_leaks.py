"""No leak after any number of random operations: ledgers, host tiers and whole stores."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.testing.tier_suite import make_key
from inferscale_sdk.tiers.arena import Arena
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.orders import Eviction
from inferscale_sdk.tiers.policies import ResidencyLedger
from inferscale_sdk.tiers.shelves import ArenaShelf
from inferscale_sdk.tiers.tiered import TieredStore, WritePolicy

LAYOUT = SegmentLayout(n_layers=1, n_kv_heads=1, head_dim=2, dtype=torch.bfloat16)
TOKEN = LAYOUT.bytes_per_token
OWNERS = ("", "0a", "0b")


def tiny(name: int, n_tokens: int, variant: int = 0) -> Segment:
    key = make_key(name)
    data = torch.full(LAYOUT.shape(n_tokens), float(name * 7 + variant), dtype=LAYOUT.dtype)
    return Segment(key, data, name, key[:32], OWNERS[name % 3])


class Watched:
    """A ledger beside what must be true of it; every operation checks what it may change."""

    def __init__(self, capacity: int, owner_bytes: int, eviction: Eviction) -> None:
        self.ledger = ResidencyLedger(capacity, eviction=eviction, owner_bytes=owner_bytes)
        self.capacity, self.owner_bytes = capacity, owner_bytes
        self.sizes: dict[str, tuple[int, str]] = {}
        self.pins: dict[str, int] = {}
        self.used = 0
        self.owned = dict.fromkeys(OWNERS, 0)

    def _out(self, key: str) -> None:
        nbytes, owner = self.sizes.pop(key)
        self.used -= nbytes
        self.owned[owner] -= nbytes

    def admit(self, key: str, nbytes: int, owner: str, cost: float) -> None:
        others = [(k, n, o) for k, (n, o) in self.sizes.items() if k != key and self.pins.get(k)]
        fits = sum(n for _, n, _ in others) + nbytes <= self.capacity
        if owner:
            own = sum(n for _, n, o in others if o == owner)
            fits = fits and own + nbytes <= self.owner_bytes
        try:
            victims = self.ledger.admit(key, nbytes, owner=owner, cost=cost)
        except StoreFull:
            assert not fits
            return
        assert fits
        if key in self.sizes:
            self._out(key)
        assert not any(self.pins.get(victim) for victim in victims)
        for victim in victims:
            if owner and self.owned[owner] + nbytes > self.owner_bytes:
                assert self.sizes[victim][1] == owner, "their own go first"
            else:
                assert self.used + nbytes > self.capacity, "and none without need"
            self._out(victim)
        self.sizes[key] = (nbytes, owner)
        self.used += nbytes
        self.owned[owner] += nbytes

    def remove(self, key: str) -> None:
        assert self.ledger.remove(key) == (key in self.sizes)
        if key in self.sizes:
            self._out(key)

    def pin(self, key: str) -> None:
        if key not in self.sizes:
            with pytest.raises(KeyError):
                self.ledger.pin([key])
            return
        self.ledger.pin([key])
        self.pins[key] = self.pins.get(key, 0) + 1

    def release(self, key: str) -> None:
        if not self.pins.get(key):
            with pytest.raises(KeyError):
                self.ledger.release([key])
            return
        self.ledger.release([key])
        self.pins[key] -= 1

    def clear(self) -> None:
        self.ledger.clear()
        for key in list(self.sizes):
            self._out(key)

    def check(self) -> None:
        assert self.ledger.used_bytes == self.used <= self.capacity
        for owner in OWNERS[1:]:
            assert self.ledger.used_by(owner) == self.owned[owner] <= self.owner_bytes

    def check_all(self) -> None:
        self.check()
        assert set(self.ledger) == set(self.sizes)
        pinned = sum(n for k, (n, _) in self.sizes.items() if self.pins.get(k))
        assert self.ledger.pinned_bytes == pinned
        orders = [self.ledger._all, *self.ledger._shares.values()]
        movable = sum(1 for key in self.sizes if not self.pins.get(key))
        assert len(orders[0].order) == movable
        owned = [key for key, (_, owner) in self.sizes.items() if owner]
        assert sum(len(share.order) for share in orders[1:]) == sum(
            1 for key in owned if not self.pins.get(key)
        )


class LedgerMachine(RuleBasedStateMachine):
    eviction: Eviction = "lru"
    keys = st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched(100, 45, self.eviction)

    @rule(key=keys, nbytes=st.integers(0, 60), cost=st.integers(1, 500))
    def admit(self, key: int, nbytes: int, cost: int) -> None:
        self.watched.admit(str(key), nbytes, OWNERS[key % 3], cost)

    @rule(key=keys)
    def touch(self, key: int) -> None:
        self.watched.ledger.touch(str(key))

    @rule(key=keys)
    def pin(self, key: int) -> None:
        self.watched.pin(str(key))

    @rule(key=keys)
    def release(self, key: int) -> None:
        self.watched.release(str(key))

    @rule(key=keys)
    def remove(self, key: int) -> None:
        self.watched.remove(str(key))

    @precondition(lambda self: len(self.watched.sizes) > 4)
    @rule()
    def clear(self) -> None:
        self.watched.clear()

    @invariant()
    def nothing_leaks(self) -> None:
        self.watched.check_all()


class CostLedgerMachine(LedgerMachine):
    eviction = "cost"


class StoreMachine(RuleBasedStateMachine):
    """A store of three tiers: what is found is what was put last, what was deleted is gone."""

    write_policy: WritePolicy = "through"
    keys = st.integers(0, 7)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.arena = Arena(LAYOUT, 12 * TOKEN)
        self.host = HostTier(12 * TOKEN, shelf=ArenaShelf(self.arena), owner_bytes=8 * TOKEN)
        self.disk = DiskTier(self.folder / "disk", "model", capacity_bytes=4000)
        self.far = DiskTier(self.folder / "far", "model")
        self.store = TieredStore(self.host, self.disk, self.far, write_policy=self.write_policy)
        self.put_last: dict[str, Segment] = {}
        self.pins: dict[str, int] = {}

    def teardown(self) -> None:
        self.store.clear()
        assert self.arena.free_tokens == self.arena.capacity_tokens
        assert self.store.used_bytes == 0
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(name=keys, n_tokens=st.integers(1, 9), variant=st.integers(0, 3))
    def put(self, name: int, n_tokens: int, variant: int) -> None:
        segment = tiny(name, n_tokens, variant)
        pinned = self.pins.get(segment.key, 0) > 0 and self.host.contains(segment.key)
        if pinned and self.host.get(segment.key) != segment:
            return  # nobody writes another segment under a key that is being read
        self.store.put(segment)
        self.put_last[segment.key] = segment

    @rule(name=keys)
    def get(self, name: int) -> None:
        key = make_key(name)
        assert self.store.get(key) == self.put_last.get(key), "the lowest tier has no limit"

    @rule(name=keys)
    def delete(self, name: int) -> None:
        key = make_key(name)
        assert self.store.delete(key) == (key in self.put_last)
        self.put_last.pop(key, None)
        assert self.store.get(key) is None
        assert not self.store.contains(key)

    @rule(name=keys)
    def pin(self, name: int) -> None:
        key = make_key(name)
        if not self.host.contains(key):
            with pytest.raises(KeyError):
                self.store.pin([key])
            return
        self.store.pin([key])
        self.pins[key] = self.pins.get(key, 0) + 1

    @rule(name=keys)
    def release(self, name: int) -> None:
        key = make_key(name)
        if self.pins.get(key, 0):
            self.store.release([key])
            self.pins[key] -= 1

    @rule()
    def restart(self) -> None:
        """As a new process: memory empty, files as they are."""
        if not any(self.pins.values()):
            self.store.flush()
            self.host.clear()

    @invariant()
    def nothing_leaks(self) -> None:
        here = list(self.host._shelf.values())
        used = sum(segment.n_tokens for segment in here)
        assert self.arena.capacity_tokens - self.arena.free_tokens == used
        assert self.host.used_bytes == used * TOKEN <= 12 * TOKEN
        for segment in here:
            assert segment == self.put_last[segment.key]
        for key, count in self.pins.items():
            if count and key in self.put_last and self.host.contains(key):
                assert key in set(self.host.keys())

    @invariant()
    def every_tier_counts_right(self) -> None:
        self.store.flush()
        assert set(self.store.keys()) == set(self.put_last)
        for tier in (self.disk, self.far):
            files = list(tier.folder.rglob("*.ifs"))
            assert tier.used_bytes == sum(path.stat().st_size for path in files)
            assert tier.stats().segments == len(files)


class WrittenBackStoreMachine(StoreMachine):
    write_policy = "back"


QUICK = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    "machine", [LedgerMachine, CostLedgerMachine, StoreMachine, WrittenBackStoreMachine]
)
def test_nothing_leaks(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


def random_ledger_operations(n: int, eviction: Eviction) -> Watched:
    rng = random.Random(n)
    watched = Watched(10_000, 4_000, eviction)
    for step in range(n):
        number = rng.randrange(400)
        key, act = str(number), rng.random()
        if act < 0.4:
            watched.admit(key, rng.randrange(200), OWNERS[number % 3], rng.randrange(1, 900))
        elif act < 0.6:
            watched.ledger.touch(key)
        elif act < 0.75:
            if sum(watched.pins.values()) < 40:
                watched.pin(key)
        elif act < 0.95:
            held = [k for k, count in watched.pins.items() if count]
            watched.release(rng.choice(held) if held else key)
        elif act < 0.9999:
            watched.remove(key)
        else:
            watched.clear()
        watched.check()
        if step % 5000 == 0:
            watched.pins = {key: count for key, count in watched.pins.items() if count}
            watched.check_all()
    watched.check_all()
    return watched


def random_host_operations(n: int, eviction: Eviction) -> None:
    rng = random.Random(n + 1)
    capacity = 64 * TOKEN
    arena = Arena(LAYOUT, capacity)
    tier = HostTier(capacity, eviction=eviction, owner_bytes=40 * TOKEN, shelf=ArenaShelf(arena))
    made = {(name, size): tiny(name, size) for name in range(40) for size in (1, 3, 8)}
    pins: list[str] = []
    for step in range(n):
        name = rng.randrange(40)
        key, act = make_key_of[name], rng.random()
        if act < 0.5:
            try:
                tier.put(made[name, rng.choice((1, 3, 8))])
            except StoreFull:
                assert pins
        elif act < 0.7:
            found = tier.get(key)
            assert found is None or float(found.data[0, 0, 0, 0, 0]) == float(
                made[name, 1].data[0, 0, 0, 0, 0]
            )
        elif act < 0.8:
            if len(pins) < 4 and tier.contains(key):
                tier.pin([key])
                pins.append(key)
        elif act < 0.9:
            if pins:
                tier.release([pins.pop(rng.randrange(len(pins)))])
        else:
            tier.delete(key)
        taken = arena.capacity_tokens - arena.free_tokens
        assert tier.used_bytes == taken * TOKEN
        if step % 5000 == 0:
            assert taken == sum(segment.n_tokens for segment in tier._shelf.values())
    tier.release(pins)
    tier.clear()
    assert (tier.pinned_bytes, tier.used_bytes) == (0, 0)
    assert arena.free_tokens == arena.capacity_tokens


make_key_of = [make_key(name) for name in range(40)]


@pytest.mark.parametrize("eviction", ["lru", "cost"])
@pytest.mark.field_fault(18)
def test_thousands_of_random_operations(eviction: Eviction) -> None:
    random_ledger_operations(20_000, eviction)
    random_host_operations(5_000, eviction)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_a_million_random_operations(eviction: Eviction) -> None:
    random_ledger_operations(1_000_000, eviction)
    random_host_operations(1_000_000, eviction)
