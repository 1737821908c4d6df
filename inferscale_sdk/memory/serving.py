"""The engine's side of a memory: planning, sending, encoding and forgetting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.encoder import Encoder
from inferscale_sdk.ingest.orphans import OrphanCheck
from inferscale_sdk.ingest.progress import ProgressCallback
from inferscale_sdk.ingest.windows import WindowStrategy
from inferscale_sdk.ingest.worker import EncodeWorker, WorkerState
from inferscale_sdk.memory.preparing import OnError, Preparer
from inferscale_sdk.memory.sending import Sender
from inferscale_sdk.memory.values import MemoryStats
from inferscale_sdk.prompt.base import EncodePlan, Reading
from inferscale_sdk.prompt.frame import Frame
from inferscale_sdk.prompt.order import FactOrder
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.types import Fact, Message, Namespace

__all__ = ["Serving"]

log = logging.getLogger(__name__)

FORGET_WAIT_SECONDS = 1.0


class Serving:
    """What a memory with an engine has besides.

    Args:
        store: Facts and ledgers.
        engine: Who answers and encodes.
        frame: Text around facts.
        window: Which facts stand before which while encoding.
        on_error: See :class:`Preparer`.
        background: Whether to encode in a thread.
        orphan_check_seconds: How often the thread looks for orphans; 0 never.
        live_facts: See :class:`Preparer`.
        order: See :class:`Preparer`.
        prefetch: See :class:`Preparer`.
    """

    def __init__(
        self,
        store: FactStore,
        engine: Engine,
        frame: Frame,
        window: WindowStrategy,
        *,
        on_error: OnError,
        background: bool,
        orphan_check_seconds: float = 0.0,
        live_facts: int | None = None,
        order: FactOrder = "best-last",
        prefetch: bool = False,
    ) -> None:
        self.store = store
        self.engine = engine
        self._frame = frame
        self._lock = threading.Lock()
        self._planner: Planner | None = None
        self.encoder = Encoder(store, engine, _EncodePlanner(self), window)
        self.orphans = OrphanCheck(store, engine, self.encoder.profile)
        self.worker = (
            EncodeWorker(self.encoder, orphans=self.orphans, check_seconds=orphan_check_seconds)
            if background
            else None
        )
        self.preparer = Preparer(
            store,
            engine,
            self.planner,
            window.name,
            on_error=on_error,
            live_facts=live_facts,
            order=order,
            prefetch=prefetch,
        )
        self.sender = Sender(store, engine, self.preparer, self.wake)
        if self.worker is not None:
            self.worker.start()

    def planner(self) -> Planner:
        """The planner; made on first use, since it needs the engine's tokenizer."""
        with self._lock:
            if self._planner is None:
                self._planner = Planner(
                    self.engine.tokenizer, frame=self._frame, store_secret=self.store.secret
                )
            return self._planner

    def wake(self, scope: Namespace | None = None) -> None:
        """Facts of ``scope`` wait to be encoded."""
        if self.worker is not None:
            self.worker.wake(scope)

    def forget_promptly(self) -> None:
        """Have the server drop what was deleted, now if it answers quickly.

        The keys are on the store's ledger either way; a slow or absent server gets them later.
        """
        if self.worker is not None and self.worker.status.state is WorkerState.BACKING_OFF:
            return
        if not self.store.forget_queue(1):
            return
        thread = threading.Thread(target=self._forget, name="inferscale-forget", daemon=True)
        thread.start()
        thread.join(FORGET_WAIT_SECONDS)

    def _forget(self) -> None:
        try:
            self.encoder.send_forgets()
        except Exception as error:  # the ledger keeps them
            log.info("deleted KV is dropped later, the engine failed: %s", type(error).__name__)

    @property
    def may_encode(self) -> bool:
        """Whether a thread is at it that has not found the engine unable to inject."""
        return self.worker is not None and self.worker.status.state not in (
            WorkerState.STOPPED,
            WorkerState.TEXT_ONLY,
        )

    def wait_encoded(
        self, timeout: float | None, scope: Namespace | None, progress: ProgressCallback | None
    ) -> bool:
        """See :meth:`Memory.wait_encoded`. Without a thread it encodes here and now."""
        if self.worker is not None:
            return self.worker.wait(timeout, scope, progress)
        try:
            self.encoder.drain(timeout=timeout, progress=progress, scope=scope)
            return self.encoder.is_done(scope)
        except (EngineUnavailable, EngineTimeout) as error:
            log.warning(
                "encoding paused, the engine failed: %s; what is left waits for the next attempt",
                type(error).__name__,
            )
            return False

    def add_stats(self, stats: MemoryStats) -> MemoryStats:
        """``stats`` with what is known on this side."""
        pending: int | None = None
        try:
            profile = self.encoder.profile()
            pending = None if profile is None else self.store.count_pending(profile)
        except EngineError as error:
            log.debug("pending facts unknown: %s", type(error).__name__)
        stats = replace(
            stats,
            pending=pending,
            degraded=self.preparer.degraded,
            encoding=self.encoder.total,
        )
        return stats if self.worker is None else replace(stats, worker=self.worker.status)

    def close(self) -> None:
        """Stop the thread."""
        if self.worker is not None and not self.worker.stop():
            log.warning("the encoding thread is still waiting for the engine; it ends by itself")


class _EncodePlanner:
    """Hands the encoder a planner that does not exist yet."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def profile(self, fingerprint: str, strategy: str) -> str:
        return self._serving.planner().profile(fingerprint, strategy)

    def plan_encode(
        self,
        window: Sequence[Fact],
        facts: Sequence[Fact],
        *,
        fingerprint: str,
        partition: str,
        capture_preamble: bool,
        messages: Sequence[Message | Mapping[str, Any]] = (),
        readings: Mapping[str, Reading] | None = None,
        nonce: str = "",
    ) -> EncodePlan:
        return self._serving.planner().plan_encode(
            window,
            facts,
            fingerprint=fingerprint,
            partition=partition,
            capture_preamble=capture_preamble,
            messages=messages,
            readings=readings,
            nonce=nonce,
        )
