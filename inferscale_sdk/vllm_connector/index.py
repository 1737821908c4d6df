"""Scheduler half: which segments the workers hold, and which are being fetched."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from inferscale_sdk.errors import StoreFull
from inferscale_sdk.protocol import Reason
from inferscale_sdk.tiers.orders import Eviction
from inferscale_sdk.tiers.policies import ResidencyLedger
from inferscale_sdk.vllm_connector.metadata import Captured, Staged

__all__ = ["SegmentIndex", "SegmentInfo"]

ABSENCE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What must match before a segment may be injected."""

    n_tokens: int
    token_digest: str
    nbytes: int


class SegmentIndex:
    """Residency of segments over all ranks, and the byte budgets of the host tier.

    The scheduler half owns this; the workers only follow, so that a segment claimed in a step is
    certain to be there when the step runs. ``stage`` and ``evict`` collect the keys for the next
    :class:`~inferscale_sdk.vllm_connector.metadata.Commands`.
    """

    def __init__(
        self, host_bytes: int, *, eviction: Eviction = "lru", owner_bytes: int | None = None
    ) -> None:
        self.world_size = 1
        self.evictions = 0
        self._ledger = ResidencyLedger(host_bytes, eviction=eviction, owner_bytes=owner_bytes)
        self._resident: dict[str, SegmentInfo] = {}
        self._fetching: set[str] = set()
        self._forgetting: Counter[str] = Counter()
        self._outdated: set[str] = set()
        self._votes: defaultdict[tuple[str, str], list[Staged | Captured]] = defaultdict(list)
        self._absent: dict[str, tuple[Reason, float]] = {}
        self._stage: list[str] = []
        self._evict: list[str] = []

    def get(self, key: str) -> SegmentInfo | None:
        """The resident segment under ``key``; counts as use."""
        info = self._resident.get(key)
        if info is not None:
            self._ledger.touch(key)
        return info

    def fetch(self, keys: Iterable[str]) -> set[str]:
        """Ask the workers for keys that are not resident; returns those not answered yet.

        A key that was just reported absent is not asked for again for a moment, so that many
        requests naming it cost one look-up.
        """
        waiting = set()
        now = time.monotonic()
        for key in keys:
            if key in self._resident:
                continue
            absent = self._absent.get(key)
            if absent is not None:
                if now < absent[1]:
                    continue
                del self._absent[key]
            waiting.add(key)
            if key not in self._fetching:
                self._fetching.add(key)
                self._stage.append(key)
        return waiting

    def unanswered(self, keys: set[str]) -> set[str]:
        """Of ``keys``, those still being fetched."""
        return keys & self._fetching

    def why_absent(self, key: str) -> Reason:
        """The reason a key is not resident."""
        absent = self._absent.get(key)
        return absent[0] if absent else Reason.MISSING

    def add(self, item: Staged | Captured) -> Reason | None:
        """Take one rank's word on a key.

        Returns:
            ``None`` until every rank has spoken, then the outcome for all of them.
        """
        # A read and a capture of one key are separate ballots.
        ballot = (item.key, item.request_id if isinstance(item, Captured) else "")
        votes = self._votes[ballot]
        votes.append(item)
        if len(votes) < self.world_size:
            return None
        del self._votes[ballot]
        is_old = item.key in self._forgetting
        if isinstance(item, Staged):
            self._fetching.discard(item.key)
            is_old = is_old or item.key in self._outdated
            self._outdated.discard(item.key)
        reason = next((vote.reason for vote in votes if vote.reason), Reason.OK)
        if not reason and is_old:
            # It is older than the deletion: what comes after waits until that is over.
            reason = Reason.INCOMPLETE if isinstance(item, Captured) else Reason.MISSING
        if not reason and any(vote.token_digest != item.token_digest for vote in votes):
            reason = Reason.TOKEN_MISMATCH
        if not reason:
            info = SegmentInfo(item.n_tokens, item.token_digest, sum(v.nbytes for v in votes))
            reason = self._admit(item.key, info, item.owner, item.encode_tokens)
        if reason:
            # Where no rank has it there is nothing to evict, and what is captured meanwhile stays.
            if any(not vote.reason for vote in votes):
                self.remove([item.key])
                self._evict.append(item.key)
            self._note_absent(item.key, reason)
        return reason

    def _admit(self, key: str, info: SegmentInfo, owner: str, encode_tokens: int) -> Reason:
        self._absent.pop(key, None)
        if key in self._resident:
            self._resident[key] = info
            return Reason.OK
        try:
            victims = self._ledger.admit(key, info.nbytes, owner=owner, cost=encode_tokens)
        except StoreFull:
            return Reason.STORE_FAILED
        self._resident[key] = info
        for victim in victims:
            del self._resident[victim]
            self._evict.append(victim)
            self.evictions += 1
        return Reason.OK

    def _note_absent(self, key: str, reason: Reason) -> None:
        if len(self._absent) > 65_536:
            self._absent.clear()
        self._absent[key] = (reason, time.monotonic() + ABSENCE_SECONDS)

    def remove(self, keys: Iterable[str]) -> None:
        """Forget keys at once; the workers are told by the caller."""
        for key in keys:
            if self._resident.pop(key, None) is not None:
                self._ledger.remove(key)
            self._absent.pop(key, None)

    def forget(self, keys: Collection[str]) -> None:
        """Remove keys for good: until as many :meth:`forgotten`, nothing brings them back.

        The workers are told by the caller. What they captured or read before comes in as long as
        not all have answered.
        """
        self.remove(keys)
        self._forgetting.update(keys)

    def forgotten(self, key: str) -> None:
        """Every rank has carried out one :meth:`forget` of a key."""
        self._forgetting[key] -= 1
        if not self._forgetting[key]:
            del self._forgetting[key]

    def is_forgetting(self, keys: Iterable[str]) -> bool:
        """Whether one of ``keys`` is being forgotten."""
        return any(key in self._forgetting for key in keys)

    def drop(self, keys: Iterable[str]) -> None:
        """A rank turned out not to have these: believe it, and have the others evict them."""
        for key in keys:
            if key in self._resident:
                self.remove([key])
                self._evict.append(key)

    def deleted_elsewhere(self, keys: Collection[str]) -> int:
        """Others removed these for good: what is here goes, and what is being read is not kept.

        Returns:
            How many were here.
        """
        here = [key for key in keys if key in self._resident]
        self.drop(here)
        self._outdated.update(self._fetching.intersection(keys))
        return len(here)

    def pin(self, keys: Iterable[str]) -> list[str]:
        """Protect resident keys from eviction; returns those pinned, for :meth:`release`."""
        pinned = [key for key in keys if key in self._resident]
        self._ledger.pin(pinned)
        return pinned

    def release(self, keys: Iterable[str]) -> None:
        """Undo one :meth:`pin` of keys; keys forgotten meanwhile are ignored."""
        for key in keys:
            # A key forgotten meanwhile took its pins with it, also if it has come back since.
            with suppress(KeyError):
                self._ledger.release([key])

    def take_commands(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys to stage and keys to evict since the last call."""
        # A key evicted and wanted again in the same step: the workers evict first, then read.
        stage, evict = tuple(self._stage), tuple(self._evict)
        self._stage.clear()
        self._evict.clear()
        return stage, evict

    def stats(self) -> dict[str, int | None]:
        """Figures of the host tier."""
        return {
            "segments": len(self._resident),
            "used_bytes": self._ledger.used_bytes,
            "pinned_bytes": self._ledger.pinned_bytes,
            "capacity_bytes": self._ledger.capacity_bytes,
            "fetching": len(self._fetching),
            "evictions": self.evictions,
        }
