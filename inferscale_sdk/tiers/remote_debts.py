"""Deletions that a remote store owes."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice

from inferscale_sdk.tiers.remote_debt_book import DebtBook

__all__ = ["Debts"]


class Debts:
    """Deletions that are owed, and writes under way that a deletion must wait for.

    A write that was given up on may still land. A deletion that came after its beginning wins, so
    whoever learns that a write has landed deletes again if a deletion is owed by then.

    Args:
        book: Keeps those that failed and are owed everywhere; without it they end with the process.
    """

    def __init__(self, book: DebtBook | None = None) -> None:
        self._book = book
        # Key, and whether everywhere.
        self._owed: dict[str, bool] = dict.fromkeys(book.owed, True) if book else {}
        self._writing: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._owed

    def __len__(self) -> int:
        return len(self._owed)

    def owe(self, key: str, *, everywhere: bool) -> None:
        """Its deletion has begun."""
        with self._lock:
            self._owed[key] = everywhere or self._owed.get(key, False)

    def write_down(self, key: str) -> None:
        """Its deletion has failed: whoever comes after this process shall know of it."""
        with self._lock:
            if self._owed.get(key) and self._book is not None:
                self._book.add(key)

    def paid(self, key: str, *, everywhere: bool) -> None:
        """It was deleted; it stays owed as long as a write may land, or elsewhere."""
        with self._lock:
            if key not in self._writing and (everywhere or not self._owed.get(key)):
                self._settled(key)

    def begin_write(self, key: str) -> bool | None:
        """A write begins, which makes up for a deletion that is owed; what to give back if not."""
        with self._lock:
            self._writing[key] += 1
            return self._settled(key)

    def _settled(self, key: str) -> bool | None:
        if self._book is not None:
            self._book.done(key)
        return self._owed.pop(key, None)

    def close(self) -> None:
        """Leave what is owed to the book."""
        with self._lock:
            if self._book is not None:
                self._book.close()

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
