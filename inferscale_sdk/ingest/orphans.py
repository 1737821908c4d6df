"""The ledger against the engine: KV that no fact names, and facts whose KV is gone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.facts.base import FactStore

__all__ = ["DAMAGED_ONLY", "GRACE_SECONDS", "PAGE", "OrphanCheck", "OrphanReport", "key_pages"]

log = logging.getLogger(__name__)

GRACE_SECONDS = 3600.0
"""An encode request that takes longer than this is taken for one that died."""
PAGE = 512
_PAUSE_SECONDS = 0.05

DAMAGED_ONLY = frozenset({"quarantine", "temporary"})
"""Places from which a segment cannot be served."""


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """What a check found.

    Args:
        checked: Recorded keys that were looked for.
        orphans: Keys captured for us that no fact names; they are queued to be forgotten.
        lost: Recorded keys whose segment is gone; their facts are encoded again.
        evicted: Likewise gone, but from an engine that drops segments for want of room. Encoding
            these would only push out others; a fact that is used is encoded again then.
        complete: Whether the check came to its end.
    """

    checked: int = 0
    orphans: int = 0
    lost: int = 0
    evicted: int = 0
    complete: bool = True


class OrphanCheck:
    """Compares what a store says about its KV with what the engine has.

    Only keys of this store are ever touched: other stores may use the same server or folder.

    Args:
        store: The ledger.
        engine: Who keeps the KV.
        profile: The profile facts are encoded under, ``None`` if the engine cannot inject.
        grace_seconds: Keys noted more recently may belong to a request under way.
    """

    def __init__(
        self,
        store: FactStore,
        engine: Engine,
        profile: Callable[[], str | None],
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._store = store
        self._engine = engine
        self._profile = profile
        self._grace = timedelta(seconds=grace_seconds)

    def run(self, stop: threading.Event | None = None) -> OrphanReport:
        """Queue orphans to be forgotten, and have lost segments encoded again.

        Args:
            stop: Ends the check early once it is set.

        Raises:
            EngineError: The engine cannot be asked.
            StoreError: The store failed.
        """
        profile = self._profile()
        if profile is None:
            return OrphanReport(complete=False)
        orphans = self._store.queue_forget(self._store.orphans(datetime.now(UTC) - self._grace))
        if orphans:
            log.info("%d segments belong to no fact any more; they are dropped", len(orphans))
        report = OrphanReport(orphans=len(orphans))
        for keys in key_pages(self._store, profile):
            found = self._engine.locate(keys)
            gone = [key for key in keys if DAMAGED_ONLY.issuperset(found.get(key, ()))]
            evicted = bool(gone) and self._evicts()
            report = replace(
                report,
                checked=report.checked + len(keys),
                lost=report.lost + (0 if evicted else self._store.drop_encodings(gone)),
                evicted=report.evicted + (len(gone) if evicted else 0),
            )
            # Background work: others' requests go first.
            if stop is not None and stop.wait(_PAUSE_SECONDS):
                return replace(report, complete=False)
        if report.lost:
            log.info("the server has lost %d segments; they are encoded again", report.lost)
        return report

    def _evicts(self) -> bool:
        tiers = self._engine.stats().tiers.values()
        return any(tier.get("evictions") for tier in tiers if isinstance(tier, Mapping))


def key_pages(store: FactStore, profile: str) -> Iterator[list[str]]:
    """All keys that records under ``profile`` name, :data:`PAGE` at a time.

    Records of a page may be dropped before the next one is asked for.
    """
    after = ""
    while keys := store.recorded_keys(profile, after=after, limit=PAGE):
        yield keys
        after = keys[-1]
