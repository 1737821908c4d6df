"""The parts behind a memory, made and ended together."""

from __future__ import annotations

import logging
from pathlib import Path

from inferscale_sdk.config import settings
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.facts.base import FACTS_FILE, FactStore
from inferscale_sdk.ingest.default import default_window
from inferscale_sdk.ingest.relatives import IndexRelatives
from inferscale_sdk.ingest.windows import WindowStrategy
from inferscale_sdk.memory.arguments import check_folder, check_kind, check_seconds
from inferscale_sdk.memory.handle_desk import HandleDesk
from inferscale_sdk.memory.preparing import OnError
from inferscale_sdk.memory.recalling import IndexWorker, Recaller
from inferscale_sdk.memory.scoping import Scoping
from inferscale_sdk.memory.serving import Serving
from inferscale_sdk.memory.values import MemoryStats
from inferscale_sdk.prompt.frame import Frame
from inferscale_sdk.prompt.handles import HandleMinter
from inferscale_sdk.prompt.order import FactOrder
from inferscale_sdk.recall.base import RECALL_FILE, Embedder, RecallIndex
from inferscale_sdk.types import Namespace

__all__ = ["Assembly"]

log = logging.getLogger(__name__)


class Assembly:
    """Everything a memory is made of. It closes what it made itself, and nothing that was given.

    Args:
        engine: Who answers, if anyone.
        path: Folder of the store and the index.
        store: In place of the SQLite store in ``path``.
        index: In place of the index in ``path``.
        embedder: In place of the bundled one.
        frame: Text around facts.
        window: Which facts stand before which while encoding.
        on_error: See :class:`Preparer`.
        multi_user: See :class:`Scoping`.
        background: Whether to index and encode in threads.
        orphan_check_seconds: See :class:`Memory`.
        live_facts: See :class:`Preparer`.
        order: See :class:`Preparer`.
        prefetch: See :class:`Preparer`.

    Raises:
        ConfigurationError: Arguments contradict each other, are of another kind or out of range.
    """

    def __init__(
        self,
        engine: Engine | None,
        *,
        path: Path | str | None,
        store: FactStore | None,
        index: RecallIndex | None,
        embedder: Embedder | None,
        frame: Frame,
        window: WindowStrategy | None,
        on_error: OnError,
        multi_user: bool | None,
        background: bool,
        orphan_check_seconds: float = 0.0,
        live_facts: int | None = None,
        order: FactOrder = "best-last",
        prefetch: bool = False,
    ) -> None:
        if on_error not in ("text", "raise"):
            raise ConfigurationError(f"on_error={on_error!r} must be 'text' or 'raise'")
        if index is not None and embedder is not None:
            raise ConfigurationError("give an index or an embedder: an index has its own embedder")
        if store is not None and path is None and index is None:
            raise ConfigurationError(
                "a store was given but no index, and no path where to keep one; "
                "pass path= or index= as well"
            )
        if engine is not None:
            check_kind(engine, Engine, "engine", "give e.g. VLLMEngine('http://127.0.0.1:8000')")
        check_kind(frame, Frame, "frame", "give e.g. Frame(header='Notes:\\n')")
        if window is not None:
            check_kind(window, WindowStrategy, "window", "give e.g. PrecedingTurns(20)")
        if multi_user is not None:
            check_kind(multi_user, bool, "multi_user", "give True, False or None")
        check_seconds(orphan_check_seconds, "orphan_check_seconds")
        folder = check_folder(path) if path is not None else settings().home / "memory"
        self._own_store, self._own_index = store is None, index is None
        self.store = store if store is not None else _open_store(folder)
        self.scoping = Scoping(self.store, multi_user)
        self.recaller = Recaller(
            self.store,
            lambda: _open_index(folder, embedder),
            lambda: _open_bare_index(folder),
            index=index,
        )
        self.indexer = IndexWorker(self.recaller) if background else None
        relatives = IndexRelatives(self.store, self._current_index)
        self.desk = HandleDesk(self.store, HandleMinter(self.store.secret))
        self._serving = (
            Serving(
                self.store,
                engine,
                frame,
                (window or default_window()).bound(relatives),
                on_error=on_error,
                background=background,
                orphan_check_seconds=orphan_check_seconds,
                live_facts=live_facts,
                order=order,
                prefetch=prefetch,
            )
            if engine is not None
            else None
        )
        self._closed = False

    def _current_index(self) -> RecallIndex:
        self.recaller.catch_up()
        return self.recaller.index

    @property
    def maybe_serving(self) -> Serving | None:
        """The engine's side, ``None`` without an engine."""
        return self._serving

    @property
    def serving(self) -> Serving:
        """The engine's side.

        Raises:
            ConfigurationError: The memory was built without an engine.
            StoreError: The memory is closed: it must not answer as if it were empty.
        """
        if self._closed:
            raise StoreError("this memory is closed; open it again to answer with it")
        if self._serving is None:
            raise ConfigurationError(
                "this memory has no engine to answer with; build it with one, e.g. "
                "Memory(VLLMEngine(base_url='http://127.0.0.1:8000'))"
            )
        return self._serving

    @property
    def may_encode(self) -> bool:
        """Whether waiting for encoding makes sense at all."""
        return self._serving is not None and self._serving.may_encode

    def changed(self, scope: Namespace, *, forget: bool = False) -> None:
        """Facts of ``scope`` were written.

        Returns at once, or with ``forget`` as soon as the server has dropped what must be
        forgotten, at most a second later.
        """
        if self.indexer is not None:
            self.indexer.wake()
        if self._serving is not None:
            if forget:
                self._serving.forget_promptly()
            self._serving.wake(scope)

    def stats(self) -> MemoryStats:
        """Counters of all parts."""
        stats = MemoryStats(
            last_seq=self.store.last_seq(),
            pending=None,
            forgets_queued=len(self.store.forget_queue()),
            handles_resolved=self.desk.resolved,
            handles_inert=self.desk.inert,
        )
        return stats if self._serving is None else self._serving.add_stats(stats)

    def close(self) -> None:
        """Stop threads and release files. What waits is in the store and goes on next time."""
        if self._closed:
            return
        self._closed = True
        if self._serving is not None:
            self._serving.close()
        if self.indexer is not None and not self.indexer.stop():
            log.warning("the indexing thread is still embedding; it ends by itself")
        self.recaller.settle()
        if self._own_index:
            self.recaller.close()
        if self._own_store:
            self.store.close()


def _open_store(folder: Path) -> FactStore:
    from inferscale_sdk.facts.sqlite import SQLiteFactStore

    return SQLiteFactStore(folder / FACTS_FILE)


def _open_index(folder: Path, embedder: Embedder | None) -> RecallIndex:
    from inferscale_sdk.recall.embedders import bundled_embedder
    from inferscale_sdk.recall.hybrid import HybridRecall

    return HybridRecall(folder / RECALL_FILE, embedder or bundled_embedder())


def _open_bare_index(folder: Path) -> RecallIndex | None:
    """The index in ``folder``, if there is one, to take facts out of: no model is loaded."""
    from inferscale_sdk.recall.hybrid import LexicalRecall

    path = folder / RECALL_FILE
    return LexicalRecall(path) if path.exists() else None
