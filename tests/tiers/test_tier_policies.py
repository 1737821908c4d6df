"""The ledger against a model that is too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.tiers.policies import ResidencyLedger

CAPACITY = 100
KEYS = st.sampled_from("abcdefgh")


class LedgerAgainstModel(RuleBasedStateMachine):
    """The model is a list in order of use, and a count of pins."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ResidencyLedger(CAPACITY)
        self.uses: list[tuple[str, int]] = []  # oldest use first
        self.pins: dict[str, int] = {}

    def size(self, key: str) -> int | None:
        return dict(self.uses).get(key)

    def drop(self, key: str) -> None:
        self.uses = [(k, n) for k, n in self.uses if k != key]

    def use(self, key: str) -> None:
        size = self.size(key)
        if size is not None:
            self.drop(key)
            self.uses.append((key, size))

    @rule(key=KEYS, nbytes=st.integers(0, CAPACITY + 20))
    def admit(self, key: str, nbytes: int) -> None:
        others = [(k, n) for k, n in self.uses if k != key]
        victims: list[str] = []
        for candidate, size in list(others):
            if sum(n for _, n in others) + nbytes <= CAPACITY:
                break
            if not self.pins.get(candidate):
                others.remove((candidate, size))
                victims.append(candidate)
        if sum(n for _, n in others) + nbytes > CAPACITY:
            with pytest.raises(StoreFull):
                self.ledger.admit(key, nbytes)
            return
        assert self.ledger.admit(key, nbytes) == victims
        self.uses = [*others, (key, nbytes)]

    @rule(key=KEYS)
    def touch(self, key: str) -> None:
        self.ledger.touch(key)
        if not self.pins.get(key):
            self.use(key)

    @rule(keys=st.lists(KEYS, max_size=4))
    def pin(self, keys: list[str]) -> None:
        if any(self.size(key) is None for key in keys):
            with pytest.raises(KeyError):
                self.ledger.pin(keys)
            return
        self.ledger.pin(keys)
        for key in keys:
            self.pins[key] = self.pins.get(key, 0) + 1

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.pins)))
        self.ledger.release([key])
        self.pins[key] -= 1
        if not self.pins[key]:
            del self.pins[key]
            self.use(key)

    @rule(key=KEYS)
    def release_what_is_not_pinned(self, key: str) -> None:
        if key not in self.pins:
            with pytest.raises(KeyError):
                self.ledger.release([key])

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        assert self.ledger.remove(key) == (self.size(key) is not None)
        self.drop(key)

    @precondition(lambda self: len(self.uses) > 3)
    @rule()
    def clear(self) -> None:
        self.ledger.clear()
        self.uses = []

    @invariant()
    def same(self) -> None:
        assert set(self.ledger) == {key for key, _ in self.uses}
        assert len(self.ledger) == len(self.uses)
        assert self.ledger.used_bytes == sum(size for _, size in self.uses) <= CAPACITY
        pinned = sum(size for key, size in self.uses if self.pins.get(key))
        assert self.ledger.pinned_bytes == pinned
        for key in "abcdefgh":
            assert (key in self.ledger) == (self.size(key) is not None)


LedgerAgainstModel.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestLedgerAgainstModel = LedgerAgainstModel.TestCase


def test_no_limit() -> None:
    ledger = ResidencyLedger(None)
    assert all(ledger.admit(str(i), 10**12) == [] for i in range(100))
    assert ledger.used_bytes == 100 * 10**12
    assert ledger.capacity_bytes is None


def test_messages_carry_the_numbers_and_the_way_out() -> None:
    ledger = ResidencyLedger(100)
    with pytest.raises(StoreFull, match=r"a needs 101 bytes, the whole budget is 100; raise"):
        ledger.admit("a", 101)
    ledger.admit("a", 60)
    ledger.pin(["a"])
    with pytest.raises(StoreFull, match=r"b needs 41 bytes; 60 of 100 are pinned"):
        ledger.admit("b", 41)


@pytest.mark.parametrize("bad", [-1, -(10**9)])
def test_negative_sizes_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=str(bad)):
        ResidencyLedger(bad)
    with pytest.raises(ValueError, match=str(bad)):
        ResidencyLedger(10).admit("a", bad)
