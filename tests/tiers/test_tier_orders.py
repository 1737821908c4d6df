"""Who goes first: each order against its definition."""

from __future__ import annotations

import random

import pytest

from inferscale_sdk.tiers.orders import CostOrder, LRUOrder, make_order


def test_lru() -> None:
    order = LRUOrder()
    for key in "abc":
        order.add(key, 1, 1.0, 1)
    order.touch("a")
    order.discard("b")
    order.discard("nothing")
    assert "b" not in order
    assert [order.pop(), order.pop()] == ["c", "a"]
    with pytest.raises(LookupError):
        order.pop()


def test_cheap_and_large_ones_go_before_dear_and_small_ones() -> None:
    order = CostOrder()
    order.add("dear", 100, 900.0, 1)
    order.add("cheap", 100, 10.0, 1)
    order.add("large", 1000, 500.0, 1)
    order.add("used", 100, 10.0, 60)
    assert [order.pop() for _ in range(4)] == ["cheap", "large", "used", "dear"]
    with pytest.raises(LookupError):
        order.pop()


def test_equal_costs_make_it_lru() -> None:
    order = CostOrder()
    for key in "abcd":
        order.add(key, 10, 10.0, 1)
    assert order.pop() == "a"
    order.add("e", 10, 10.0, 1)
    assert [order.pop() for _ in range(4)] == ["b", "c", "d", "e"]


def test_what_is_not_used_ages_away_however_dear_it_was() -> None:
    order = CostOrder()
    order.add("dear", 10, 1000.0, 1)
    for step in range(2000):
        order.add(f"k{step}", 10, 10.0, 1)
        for _ in range(3):
            order.touch(f"k{step}")
        if len(order) > 5 and order.pop() == "dear":
            break
    assert "dear" not in order
    assert step > 20, "but not at once"


def test_the_heap_does_not_grow_with_uses() -> None:
    order = CostOrder()
    for i in range(20):
        order.add(str(i), 10, 10.0, 1)
    for step in range(100_000):
        order.touch(str(step % 20))
    assert len(order._heap) < 200
    assert sorted(order.pop() for _ in range(20)) == sorted(map(str, range(20)))


class Slow:
    """GreedyDual-Size with frequency by its definition: look at everything, take the lowest."""

    def __init__(self) -> None:
        self.age, self.clock = 0.0, 0
        self.keys: dict[str, list[float]] = {}  # rank, time of it, cost per byte, uses

    def rank(self, key: str, per_byte: float, uses: int) -> None:
        self.clock += 1
        self.keys[key] = [self.age + uses * per_byte, self.clock, per_byte, uses]

    def pop(self) -> str:
        key = min(self.keys, key=lambda name: self.keys[name][:2])
        self.age = self.keys.pop(key)[0]
        return key


@pytest.mark.parametrize("seed", range(5))
def test_against_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    order, slow = CostOrder(), Slow()
    for step in range(4000):
        known = sorted(slow.keys)
        act = rng.random()
        if act < 0.4 or not known:
            key, nbytes, cost = f"k{step}", rng.randrange(1, 50), float(rng.randrange(1, 500))
            order.add(key, nbytes, cost, 1)
            slow.rank(key, cost / nbytes, 1)
        elif act < 0.7:
            key = rng.choice(known)
            order.touch(key)
            _, _, per_byte, uses = slow.keys[key]
            slow.rank(key, per_byte, int(uses) + 1)
        elif act < 0.8:
            key = rng.choice(known)
            order.discard(key)
            del slow.keys[key]
        else:
            assert order.pop() == slow.pop()
        assert len(order) == len(slow.keys)


def test_unknown_kinds_are_refused() -> None:
    assert isinstance(make_order("lru"), LRUOrder)
    assert isinstance(make_order("cost"), CostOrder)
    with pytest.raises(ValueError, match="'random' is not known; use 'lru' or 'cost'"):
        make_order("random")  # type: ignore[arg-type]
