"""Turns waiting facts into stored KV.

The queue is not kept anywhere: it is what the fact store says is pending, so that a restart, or
another process, goes on where the last one stopped. Facts that wait are served as prompt text
meanwhile; nothing here is ever on the path of an answer.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from inferscale_sdk.engines.base import Engine, EngineInfo
from inferscale_sdk.errors import (
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    StoreError,
    blame,
)
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.fitting import Fitted, fit
from inferscale_sdk.ingest.forgetting import send_forgets
from inferscale_sdk.ingest.planning import EncodePlanner
from inferscale_sdk.ingest.progress import EncodeProgress, ProgressCallback
from inferscale_sdk.ingest.readings import FirstReadings
from inferscale_sdk.ingest.recording import record
from inferscale_sdk.ingest.retry import Parking, RetryPolicy
from inferscale_sdk.ingest.windows import EncodeBatch, WindowStrategy
from inferscale_sdk.prompt.base import EncodePlan
from inferscale_sdk.protocol import Reason
from inferscale_sdk.types import Fact, Namespace

__all__ = ["Encoder"]

log = logging.getLogger(__name__)

SLICE = 256
FACT_RETRY = RetryPolicy(base_seconds=1.0, max_seconds=300.0, max_attempts=8)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and whether it is a first reading: a second one will follow in the same run."""

    fitted: Fitted
    is_first: bool = False


class Encoder:
    """Encodes what is pending in a fact store. Safe for several threads; one encodes at a time.

    Args:
        store: Facts and ledgers.
        engine: Who computes the KV.
        planner: Makes the requests.
        strategy: Which facts stand before which.
        retry: When a fact the engine would not capture is tried again.
    """

    def __init__(
        self,
        store: FactStore,
        engine: Engine,
        planner: EncodePlanner,
        strategy: WindowStrategy,
        *,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._planner = planner
        self._strategy = strategy
        self._parking = Parking(retry or FACT_RETRY)
        self._encoding = threading.Lock()
        self._forgetting = threading.Lock()
        self._preambles: set[tuple[str, str]] = set()
        self._readings = FirstReadings(store)
        self._nonce = secrets.token_hex(8)
        self._total = EncodeProgress()

    # -- asking ----------------------------------------------------------------------------

    @property
    def total(self) -> EncodeProgress:
        """Everything done since the encoder was made."""
        return self._total

    def profile(self, info: EngineInfo | None = None) -> str | None:
        """The profile facts are encoded under, ``None`` if the engine cannot inject.

        Raises:
            EngineUnavailable: Nobody has answered yet.
        """
        info = info or self._engine.info()
        if not info.can_inject:
            return None
        return self._planner.profile(info.fingerprint, self._strategy.name)

    def is_done(self, scope: Namespace | None = None) -> bool:
        """Whether every fact that can be encoded is; ``False`` if the engine cannot inject.

        Raises:
            EngineUnavailable: Nobody has answered yet.
        """
        profile = self.profile()
        if profile is None:
            return False
        facts = self._store.pending(profile, scope=scope, limit=len(self._parking) + 1)
        return all(self._parking.is_final(fact) for fact in facts)

    def next_retry_in(self) -> float | None:
        """Seconds until a fact that failed may be tried again."""
        return self._parking.next_retry_in()

    # -- doing -----------------------------------------------------------------------------

    def run_once(
        self,
        limit: int = SLICE,
        *,
        progress: ProgressCallback | None = None,
        scope: Namespace | None = None,
        stop: threading.Event | None = None,
    ) -> EncodeProgress:
        """Forget what is to be forgotten, then encode up to ``limit`` waiting facts.

        Args:
            limit: Facts taken from the queue at most.
            progress: Called after every request with what this call has done so far.
            scope: Whose facts; everybody's by default.
            stop: No further request is sent once it is set.

        Returns:
            What was done. A fact the engine would not capture stays pending and is left alone
            for a while; it does not raise.

        Raises:
            EngineUnavailable: Nobody answers. Nothing is lost; call again.
            EngineTimeout: No answer in time. Likewise.
            StoreError: The fact store failed.
        """
        with self._encoding:
            # Forgets first: a fact added again with the same text has the same key, and must not
            # lose its new KV to the deletion of the old.
            done = EncodeProgress(forgotten=self._forget_first())
            self._total = self._total.plus(done)
            info = self._engine.info()
            profile = self.profile(info)
            if profile is None:
                return replace(done, reason=info.reason or "the engine cannot inject memory")
            try:
                seq = seq_now = self._store.last_seq()
                for request in self._requests(profile, info, limit, scope):
                    if stop is not None and stop.is_set():
                        break
                    step = self._encode(request, profile, seq)
                    # At once: whoever waits for the last fact may ask for the sum next.
                    done, self._total = done.plus(step), self._total.plus(step)
                    if progress is not None:
                        progress(
                            replace(done, pending=self._store.count_pending(profile, scope=scope))
                        )
                    seq_now = self._heed_changes(seq_now)
                else:
                    # A strategy that reads a fact once only would have it read for ever.
                    self._parking.fail(self._readings.unserved)
            finally:
                self._forget_readings()
                left = self._store.count_pending(profile, scope=scope)
                done = replace(done, pending=left)
                self._total = replace(self._total, pending=left, reason=done.reason)
            return done

    def drain(
        self,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        scope: Namespace | None = None,
    ) -> EncodeProgress:
        """Encode until nothing is left that can be tried now, or ``timeout`` seconds have passed.

        Raises:
            EngineUnavailable: As for :meth:`run_once`.
            EngineTimeout: As for :meth:`run_once`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        done = EncodeProgress()
        while True:
            before = done

            def report(step: EncodeProgress, before: EncodeProgress = before) -> None:
                if progress is not None:
                    progress(before.plus(step))

            step = self.run_once(progress=report, scope=scope)
            done = done.plus(step)
            if not step.requests and not step.unencodable:
                return done
            if deadline is not None and time.monotonic() >= deadline:
                return replace(done, reason=f"stopped after {timeout} seconds")

    def send_forgets(self) -> int:
        """Tell the engine to drop the keys of facts that changed or went; returns how many.

        Keys stay on the store's ledger until the engine has answered.

        Raises:
            EngineUnavailable: Nobody answers; the keys stay queued.
            EngineTimeout: No answer in time; likewise.
        """
        with self._forgetting:
            return send_forgets(self._store, self._engine)

    def _forget_first(self) -> int:
        """The same, but what a server cannot drop now keeps nothing from being encoded."""
        try:
            return self.send_forgets()
        except EngineUnavailable:
            raise
        except (EngineError, StoreError) as error:
            log.warning("stored KV of deleted facts is not dropped yet: %s", error)
            return 0

    def _heed_changes(self, seq: int) -> int:
        """Let go of first readings that a change has made stale since ``seq``; the number now."""
        now = self._store.last_seq() if self._readings.by_fact else seq
        if now != seq:
            self._readings.drop_changed()
        return now

    def _forget_readings(self) -> None:
        """First readings have served their purpose, or will be made again.

        In a request of their own, and whatever becomes of it: what cannot be dropped now stays on
        the ledger, and keeps neither this run's result nor the next run.
        """
        keys = self._readings.drop()
        if keys:
            try:
                self._engine.forget(keys)
                self._store.forget_done(keys)
            except (EngineError, StoreError) as error:
                log.info("first readings are not dropped yet: %s", blame(error))

    def engine_was_lost(self) -> None:
        """The engine may be another one now: ask again who it is, and capture preambles anew."""
        self._preambles.clear()
        self._engine.info(refresh=True)

    # -- inside ----------------------------------------------------------------------------

    def _requests(
        self, profile: str, info: EngineInfo, limit: int, scope: Namespace | None
    ) -> Iterator[_Request]:
        """Requests for up to ``limit`` facts that may be tried now, planned one at a time."""
        # Parked facts may stand at the head of the queue; look past them.
        waiting = self._store.pending(profile, scope=scope, limit=limit + len(self._parking))
        ready = self._parking.ready(waiting)[:limit]
        first = self._strategy.first_reading
        if first is not None:
            for fitted in self._fitted(first, ready, profile, info, is_first=True):
                yield _Request(fitted, is_first=True)
            ready = [fact for fact in ready if fact.id in self._readings.by_fact]
        for fitted in self._fitted(self._strategy, ready, profile, info):
            yield _Request(fitted)

    def _fitted(
        self,
        strategy: WindowStrategy,
        ready: Sequence[Fact],
        profile: str,
        info: EngineInfo,
        *,
        is_first: bool = False,
    ) -> Iterator[Fitted]:
        for batch in strategy.batches(ready, self._store):
            if self._is_encoded(batch.facts, profile):
                continue
            if strategy.first_reading is not None:
                # What was read first of a fact that has changed since is not there any more.
                facts = tuple(fact for fact in batch.facts if fact.id in self._readings.by_fact)
                if not facts:
                    continue
                batch = EncodeBatch(batch.window, facts)
            partition = batch.facts[0].namespace.partition

            def plan(
                window: Sequence[Fact], facts: Sequence[Fact], partition: str = partition
            ) -> EncodePlan:
                return self._planner.plan_encode(
                    window,
                    facts,
                    fingerprint=info.fingerprint,
                    partition=partition,
                    capture_preamble=(partition, profile) not in self._preambles,
                    readings=None if is_first else self._readings.by_fact,
                    nonce=self._nonce if is_first else "",
                )

            yield from fit(batch, plan, strategy, self._store, info.max_model_len)

    def _is_encoded(self, facts: Sequence[Fact], profile: str) -> bool:
        """Whether another process has done this batch since the queue was read."""
        return len(self._store.encodings([f.id for f in facts], profile)) == len(facts)

    def _encode(self, request: _Request, profile: str, seq: int) -> EncodeProgress:
        """Send one request and write down what became of it."""
        fitted = request.fitted
        facts, plan = fitted.batch.facts, fitted.plan
        if plan is None:
            return self._give_up(facts[0], fitted.n_tokens)
        self._note(plan)
        before = () if request.is_first else self._readings.serve(facts)
        try:
            answer = self._engine.encode(plan)
        except (EngineUnavailable, EngineTimeout) as error:
            if isinstance(error, EngineTimeout):
                self._parking.fail(facts)
            raise
        except (EngineError, ContextOverflow) as error:
            self._parking.fail(facts)
            log.warning("encoding %d facts failed: %s", len(facts), blame(error))
            return EncodeProgress(failed=len(facts), requests=1)
        stored = set(answer.stored)
        if plan.captures_preamble and plan.op.captures[0].key in stored:
            self._preambles.add((facts[0].namespace.partition, profile))
        if request.is_first:
            taken = self._readings.take(fitted.batch, plan, stored)
            return self._account(fitted, taken, answer.failed)
        records = record(
            self._store,
            fitted.batch,
            plan,
            profile=profile,
            stored=stored,
            seq=seq,
            before=before,
        )
        recorded = {record.fact_id for record in records}
        # Not before: a fact whose second reading fails again and again must wait longer each time.
        self._parking.release(fact for fact in facts if fact.id in recorded)
        return replace(
            self._account(fitted, recorded, answer.failed),
            encoded=len(records),
            own_tokens=sum(record.n_tokens for record in records),
        )

    def _note(self, plan: EncodePlan) -> None:
        """Write down what is about to be captured: whoever dies before the record leaves a trace.

        A preamble is no fact's, so no record will name it.
        """
        keys = [span.key for span in plan.op.captures]
        if plan.captures_preamble:
            self._store.note_keys(keys[:1], lasting=True)
            keys = keys[1:]
        self._store.note_keys(keys)

    def _give_up(self, fact: Fact, n_tokens: int) -> EncodeProgress:
        self._parking.give_up(fact)
        log.warning(
            "fact %s needs %d tokens with its header, more than the model's context holds; "
            "it stays prompt text. Split it into shorter facts to have it encoded",
            fact.id,
            n_tokens,
        )
        return EncodeProgress(unencodable=1)

    def _account(
        self, fitted: Fitted, captured: Collection[str], failed: Mapping[str, Reason]
    ) -> EncodeProgress:
        missed = [fact for fact in fitted.batch.facts if fact.id not in captured]
        if Reason.WRONG_MODEL in failed.values():
            self.engine_was_lost()
        if missed:
            self._parking.fail(missed)
            reasons = sorted({reason.value for reason in failed.values()}) or ["no reason given"]
            log.warning(
                "the engine did not capture %d of %d facts (%s); they are tried again later",
                len(missed),
                len(fitted.batch.facts),
                ", ".join(reasons),
            )
        return EncodeProgress(failed=len(missed), requests=1, prompt_tokens=fitted.n_tokens)
