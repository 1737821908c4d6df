"""Recall over the fact store: an index that catches up with it, in the background or when asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from inferscale_sdk.errors import MissingDependency, blame
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.memory.tracing import span
from inferscale_sdk.recall.base import RecallIndex, RecallQuery
from inferscale_sdk.recall.sync import erase, sync
from inferscale_sdk.types import ScoredFact

__all__ = ["IndexWorker", "Recaller"]

log = logging.getLogger(__name__)


class Recaller:
    """Searches an index that is made on first use and brought up to date before every search.

    Args:
        store: The truth: what an index finds counts only if the store still has it.
        make_index: Opens the index; called once.
        open_bare: Opens an index to take facts out of, without an embedder; ``None`` if there is
            no index yet. Not called once :attr:`index` is open.
        index: One that is open already, in place of ``make_index``.
    """

    def __init__(
        self,
        store: FactStore,
        make_index: Callable[[], RecallIndex],
        open_bare: Callable[[], RecallIndex | None],
        *,
        index: RecallIndex | None = None,
    ) -> None:
        self._store = store
        self._make_index = make_index
        self._open_bare = open_bare
        self._index = index
        self._owed: set[str] | None = set()
        self._opening = threading.Lock()
        self._syncing = threading.Lock()

    @property
    def index(self) -> RecallIndex:
        """The index, opened on first use."""
        with self._opening:
            if self._index is None:
                self._index = self._make_index()
            return self._index

    def catch_up(self) -> None:
        """Index everything that changed in the store, by whichever process."""
        # One at a time: a search that comes while the worker embeds waits for it, instead of
        # embedding the same facts once more.
        with self._syncing:
            sync(self._store, self.index)

    def search(self, query: RecallQuery) -> list[ScoredFact]:
        """Best first. Facts deleted meanwhile are left out, whatever the index says."""
        if not query.text.strip():
            return []
        with span("recall", top_k=query.top_k) as tracing:
            self.catch_up()
            hits = self.index.search(query)
            facts = {f.id: f for f in self._store.get_many([h.fact_id for h in hits], query.scope)}
            tracing.set(facts=len(facts))
            return [
                ScoredFact(facts[hit.fact_id], hit.score, hit.similarity)
                for hit in hits
                if hit.fact_id in facts
            ]

    # -- forgetting ------------------------------------------------------------------------

    def forget(self, fact_ids: Sequence[str]) -> None:
        """Take deleted facts out of the index now: text, terms and vectors.

        An indexing thread or process that read them before looks again after it wrote, and takes
        them out as well. Never raises: a locked file is tried again at :meth:`settle`, and the
        store's change feed has the next search do it in any case.
        """
        try:
            with self._without_embedder() as index:
                if index is not None and fact_ids:
                    index.remove(fact_ids)
        except Exception as error:
            self._owe(fact_ids, error)

    def forget_everything(self) -> None:
        """Empty the index; see :meth:`forget`."""
        try:
            with self._syncing, self._without_embedder() as index:
                if index is not None:
                    erase(self._store, index)
        except Exception as error:
            self._owe(None, error)

    def settle(self) -> None:
        """Take out what could not be taken out before."""
        owed, self._owed = self._owed, set()
        if owed is None:
            self.forget_everything()
        elif owed:
            self.forget(sorted(owed))

    def _owe(self, fact_ids: Sequence[str] | None, error: Exception) -> None:
        log.warning(
            "deleted facts are still in the recall index (%s); it is tried again when the memory "
            "is closed or searched",
            type(error).__name__,
        )
        owed = self._owed
        self._owed = None if fact_ids is None or owed is None else owed | set(fact_ids)

    @contextmanager
    def _without_embedder(self) -> Iterator[RecallIndex | None]:
        # Nobody opens the index meanwhile, or closes it.
        with self._opening:
            if self._index is not None:
                yield self._index
                return
            bare = self._open_bare()
            try:
                yield bare
            finally:
                if bare is not None:
                    bare.close()

    def close(self) -> None:
        """Release the index, if it was opened."""
        with self._opening:
            if self._index is not None:
                self._index.close()


class IndexWorker:
    """Embeds added facts while the application goes on, so that the next search need not.

    Args:
        recaller: What to bring up to date.
    """

    def __init__(self, recaller: Recaller) -> None:
        self._recaller = recaller
        self._awake = threading.Event()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something changed. Starts the thread when first called."""
        with self._lock:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(
                    target=self._run, name="inferscale-indexer", daemon=True
                )
                self._thread.start()
        self._awake.set()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """End the thread; what it had not indexed is indexed by the next search."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._awake.set()
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            if self._stopping:
                return
            try:
                self._recaller.catch_up()
            except MissingDependency as error:
                log.warning("facts are stored but cannot be searched: %s", error)
            except Exception as error:  # the next search tries again, and its caller is told
                log.warning("indexing failed: %s", blame(error))
