"""Deletions that a remote store owes."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice

__all__ = ["Debts"]


class Debts:
    """Deletions that are owed, and writes under way that a deletion must wait for.

    A write that was given up on may still land. A deletion that came after its beginning wins, so
    whoever learns that a write has landed deletes again if a deletion is owed by then.
    """

    def __init__(self) -> None:
        self._owed: dict[str, bool] = {}  # key, and whether everywhere
        self._writing: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._owed

    def __len__(self) -> int:
        return len(self._owed)

    def owe(self, key: str, *, everywhere: bool) -> None:
        """Its deletion has begun, or failed."""
        with self._lock:
            self._owed[key] = everywhere or self._owed.get(key, False)

    def paid(self, key: str, *, everywhere: bool) -> None:
        """It was deleted; it stays owed as long as a write may land, or elsewhere."""
        with self._lock:
            if key not in self._writing and (everywhere or not self._owed.get(key)):
                self._owed.pop(key, None)

    def begin_write(self, key: str) -> bool | None:
        """A write begins, which makes up for a deletion that is owed; what to give back if not."""
        with self._lock:
            self._writing[key] += 1
            return self._owed.pop(key, None)

    def end_write(self, key: str) -> bool:
        """A write has landed or failed; true if its object must be deleted now."""
        with self._lock:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]
            return key in self._owed and key not in self._writing

    def payable(self, n: int) -> list[tuple[str, bool]]:
        """Up to ``n`` deletions that need not wait for a write."""
        with self._lock:
            free = (item for item in self._owed.items() if item[0] not in self._writing)
            return list(islice(free, n))
