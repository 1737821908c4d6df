"""Worker half: carries out commands, knows no requests beyond their ids, decides nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inferscale_sdk.errors import IncompatibleModel, StoreError
from inferscale_sdk.injection.mean import averaged
from inferscale_sdk.injection.probe import judge
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import ProbeVerdict, Reason
from inferscale_sdk.rope.table import RotaryTable
from inferscale_sdk.tiers.arena import Arena
from inferscale_sdk.tiers.shelves import Shelf, make_shelf
from inferscale_sdk.vllm_connector.capture import Recorder
from inferscale_sdk.vllm_connector.layers import LayerStack
from inferscale_sdk.vllm_connector.loader import Loader
from inferscale_sdk.vllm_connector.looking import Looker
from inferscale_sdk.vllm_connector.metadata import (
    PROBE_KEY,
    Captured,
    CaptureStep,
    Commands,
    Forgotten,
    Hello,
    Loaded,
    LoadPlan,
    Order,
    Probed,
    Span,
    Staged,
    WorkerReport,
)
from inferscale_sdk.vllm_connector.metrics import WorkerMeter
from inferscale_sdk.vllm_connector.rotary import engine_tables
from inferscale_sdk.vllm_connector.storage import (
    DeviceShelf,
    division_of,
    locate_below,
    open_below,
    read_at_once,
    tier_figures,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from inferscale_sdk.tiers.base import Tier
    from inferscale_sdk.vllm_connector.config import ConnectorConfig
    from inferscale_sdk.vllm_connector.identity import ModelIdentity

__all__ = ["WorkerHalf"]

log = logging.getLogger(__name__)

READER_THREADS = 4
IDLE_WAIT_SECONDS = 0.002


class WorkerHalf:
    """One rank's segments in memory and below, and their way in and out of the cache.

    Per step: :meth:`begin`, then :meth:`load` (before the forward if the step has loads), the
    forward itself, :meth:`end`, :meth:`take_failed_blocks`, :meth:`take_report`.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        vllm_config: VllmConfig,
        identity: ModelIdentity,
        *,
        rank: int,
        world_size: int,
        text_only_reason: str = "",
    ) -> None:
        self._text_only_reason = text_only_reason
        self._config = config
        self._vllm_config = vllm_config
        self._identity = identity
        self._rank, self._world_size = rank, world_size
        self._resident: Shelf = make_shelf(config.host_dtype)
        self._below = open_below(
            config,
            identity.fingerprint,
            rank,
            division=division_of(vllm_config.parallel_config),
            server_id=str(vllm_config.kv_transfer_config.engine_id),
        )
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="inferscale-read")
        self._reading: set[str] = set()
        self._forgetting: Counter[str] = Counter()
        self._read: list[tuple[str, Segment | None]] = []
        self._looker = Looker(self._readers, self._places_below)
        self._news = threading.Condition()
        self.meter = WorkerMeter(self._tier_figures, rank)
        self._commands = Commands()
        self._report = WorkerReport()
        self._failed_blocks: set[int] = set()
        self._restore_sinks: Callable[[], None] = _nothing
        self._stack: LayerStack | None = None
        self._recorder: Recorder | None = None
        self._loader: Loader | None = None
        self._candidates: tuple[tuple[RotaryTable | None, ...], ...] = ()
        self._table_fault = ""

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's caches exist now: look at the model, and watch its layers."""
        try:
            if self._text_only_reason:
                raise IncompatibleModel(self._text_only_reason)
            hf_config = _with_theta(self._identity.hf_config, self._config.rope_theta)
            self._stack = LayerStack.from_engine(self._vllm_config, kv_caches, hf_config)
        except IncompatibleModel as error:
            log.warning("inferscale: memory is served as text: %s", error)
            self._report.hello.append(
                Hello(0, 0, self._identity.dtype, self._world_size, text_only_reason=str(error))
            )
            return
        layout = self._stack.layout
        self._candidates = self._rotation_tables(self._stack)
        if self._config.device_bytes is not None:
            arena = Arena(layout, self._config.device_bytes, self._stack.device)
            self._resident = DeviceShelf(self._resident, arena)
        self._recorder = Recorder(self._stack)
        self._loader = Loader(self._stack, self._candidates[0])
        self._stack.watch(self._recorder.hook)
        self._report.hello.append(
            Hello(
                n_layers=layout.n_layers,
                bytes_per_token=layout.bytes_per_token,
                dtype=self._identity.dtype,
                world_size=self._world_size,
            )
        )

    def _rotation_tables(self, stack: LayerStack) -> tuple[tuple[RotaryTable | None, ...], ...]:
        """Ways the engine may turn its keys, the likeliest first."""
        n_positions = self._identity.max_model_len
        ours = [stack.tables(n_positions, rounding) for rounding in (stack.layout.dtype, None)]
        try:
            theirs = engine_tables(stack.specs, n_positions, stack.device)
        except IncompatibleModel as error:
            self._table_fault, theirs = str(error), None
        return (*ours,) if theirs is None else (theirs, *ours)

    # -- one engine step ---------------------------------------------------------------------

    def begin(self, commands: Commands) -> None:
        """Commands of this step have come; the forward is next."""
        self._commands = commands
        if self._recorder is not None:
            for request_id in commands.drop_captures:
                self._recorder.drop(request_id)
            self._recorder.arm(self._fit_for_probe(commands))

    def _fit_for_probe(self, commands: Commands) -> tuple[CaptureStep, ...]:
        """The captures of this step, without a probe that would not be a fair one.

        An attention sink's share shrinks as tokens get more, so identical tokens no longer have
        identical values. Without sinks they do; but sinks may be muted only while the probe is
        the only request.
        """
        if self._stack is None or not self._stack.has_sinks:
            return commands.captures
        fair = commands.n_requests == 1
        probes = [step for step in commands.captures if _is_probe(step)]
        if probes and fair:
            self._restore_sinks = self._stack.mute_sinks()
        return tuple(s for s in commands.captures if fair or not _is_probe(s))

    def load(self) -> None:
        """Carry out the load plans; a failure concerns its own request alone."""
        loads, self._commands.loads = self._commands.loads, ()
        for plan in loads:
            self._report.loaded.append(self._load_one(plan))

    def _load_one(self, plan: LoadPlan) -> Loaded:
        keys = tuple(piece.key for piece in plan.pieces)
        try:
            assert self._loader is not None
            started = time.perf_counter()
            with self._resident.lent(keys) as segments:
                self._loader.load(plan, segments)
            self.meter.count("load_seconds", time.perf_counter() - started)
            self.meter.count("loaded_bytes", self._nbytes(plan.last - plan.first))
        except Exception:
            log.exception("inferscale: loading %d segments failed", len(keys))
            block_size = self._identity.block_size
            blocks = range(plan.first // block_size, -(-plan.last // block_size))
            self._failed_blocks.update(plan.block_ids[i] for i in blocks)
            missing = tuple(key for key in dict.fromkeys(keys) if key not in self._resident)
            reason = Reason.MISSING if missing else Reason.LOAD_FAILED
            return Loaded(plan.request_id, 0, (), reason, missing)
        return Loaded(plan.request_id, plan.last - plan.first, keys)

    def end(self) -> None:
        """The forward is over: evict, forget, keep what was captured, start and collect reads."""
        commands = self._commands
        self._restore_sinks()
        self._restore_sinks = _nothing
        # Before captures: these keys went before this step. One that was looked for in vain, and is
        # therefore captured now, is among them. And what is captured now of a forgotten key was
        # asked for before, so it is not to be kept.
        for key in commands.evict:
            self._resident.discard(key)
        for order in commands.forget:
            self._forget(order)
        self._finish_captures()
        for key in commands.stage:
            self._start_read(key)
        self._collect_reads(wait=commands.idle)
        for order in commands.locate:
            self._looker.start(order, self._in_memory(order.keys))
        self._report.located += self._looker.take()
        self._commands = Commands()

    def take_failed_blocks(self) -> set[int]:
        """Blocks whose load failed in this step; vLLM computes them again."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerReport | None:
        """News for the scheduler half, ``None`` if there are none."""
        with self._news:
            report, self._report = self._report, WorkerReport()
        return None if report.is_empty else report

    def close(self) -> None:
        """Stop reading, and write what waits to be written."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        if self._below is not None:
            self._below.close()

    # -- captures ----------------------------------------------------------------------------

    def _finish_captures(self) -> None:
        if self._recorder is None:
            return
        if self._recorder.error is not None:
            log.error("inferscale: a capture failed", exc_info=self._recorder.error)
        for request_id, span, segment in self._recorder.disarm():
            if span.key.startswith(PROBE_KEY):
                verdict = self._judge(segment)
                self._report.probes.append(Probed(request_id, self._rank, verdict))
            else:
                self._report.captured.append(self._keep_read(request_id, span, segment))

    def _keep_read(self, request_id: str, span: Span, segment: Segment) -> Captured:
        """Keep a reading, or its mean with an earlier one."""
        if span.beside is None:
            return self._keep(request_id, segment)
        try:
            assert self._loader is not None and self._stack is not None
            beside, tables = self._stored(span.beside), self._loader.tables
            mean, reason = averaged(segment, beside, tables, device=self._stack.device)
        except Exception:  # whatever is wrong with what was stored costs this capture alone
            log.exception("inferscale: a second reading could not be averaged with the first")
            return Captured(request_id, span.key, Reason.INTERNAL)
        if reason:
            return Captured(request_id, span.key, reason)
        return self._keep(request_id, mean)

    def _stored(self, key: str) -> Segment | None:
        """A segment in memory or on disk. For the engine's own thread: it waits for the read."""
        if key in self._forgetting:
            return None
        segment = self._resident.get(key)
        if segment is None and self._below is not None:
            segment = read_at_once(self._below, key)
        return segment

    def _keep(self, request_id: str, segment: Segment) -> Captured:
        try:
            self._resident[segment.key] = segment
        except StoreError as error:
            log.warning("inferscale: segment not kept: %s", error)
            return Captured(request_id, segment.key, Reason.INTERNAL)
        if self._below is not None:
            try:
                self._below.put(segment)
            except (StoreError, OSError) as error:
                # It still serves from memory; after a restart it is encoded again.
                log.warning("inferscale: segment kept in memory only: %s", error)
                self._count("disk_write_failures")
        self.meter.count("captured_bytes", segment.nbytes)
        return Captured(request_id, segment.key, **self._described(segment))

    def _described(self, segment: Segment) -> dict[str, Any]:
        """What the scheduler half wants to know of a segment that is resident now."""
        return {
            "n_tokens": segment.n_tokens,
            "token_digest": segment.token_digest,
            "nbytes": self._resident.size_of(segment),
            "owner": segment.owner,
            "encode_tokens": segment.encode_tokens,
        }

    def _judge(self, segment: Segment) -> ProbeVerdict:
        assert self._stack is not None and self._loader is not None
        judgement = judge(
            segment.data.to(self._stack.device),
            self._candidates,
            self._stack.names,
            tolerance=self._config.probe_key_tolerance,
            windows=self._stack.windows,
        )
        self._loader.tables = self._candidates[judgement.candidate]
        verdict = judgement.verdict
        if verdict.status == "exact" and self._table_fault:
            changes = {"status": "text_only", "reason": self._table_fault}
            verdict = verdict.model_copy(update=changes)
        level = logging.INFO if verdict.status == "exact" else logging.WARNING
        log.log(level, "inferscale: rotation probe: %s %s", verdict.status, verdict.reason)
        return verdict

    # -- tiers -------------------------------------------------------------------------------

    def _forget(self, order: Order) -> None:
        """Out of memory at once, and out of the tiers below aside: another machine takes time."""
        keys = set(order.keys)
        if self._recorder is not None:
            self._recorder.forget(keys)
        with self._news:
            # A read under way must not bring a key back, nor one that is not collected yet.
            self._reading -= keys
            self._read = [(k, None if k in keys else segment) for k, segment in self._read]
            self._forgetting.update(keys)
        for key in order.keys:
            existed = self._resident.discard(key)
            if self._below is None:
                self._forgotten(Forgotten(order.serial, key, existed))
            else:
                gone = Forgotten(order.serial, key, existed)
                self._readers.submit(self._forget_below, gone, self._below)

    def _forget_below(self, gone: Forgotten, below: Tier) -> None:
        try:
            gone = replace(gone, existed=below.delete_everywhere(gone.key) > 0 or gone.existed)
        except Exception:
            log.exception("inferscale: a segment could not be removed from every tier")
            self._count("forget_failures")
            gone = replace(gone, failed=True)
        self._forgotten(gone)

    def _forgotten(self, gone: Forgotten) -> None:
        with self._news:
            self._forgetting[gone.key] -= 1
            if not self._forgetting[gone.key]:
                del self._forgetting[gone.key]
            self._report.forgotten.append(gone)
            self._news.notify()

    def _places_below(self, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
        return {} if self._below is None else locate_below(self._below, self._config, keys)

    def _in_memory(self, keys: Collection[str]) -> set[str]:
        with self._news:
            # One that is read right now will be there in a moment.
            return {key for key in keys if key in self._resident or key in self._reading}

    def _start_read(self, key: str) -> None:
        segment = self._resident.get(key)
        if segment is not None or self._below is None or key in self._forgetting:
            self._read_done(key, segment, was_reading=False)
            return
        with self._news:
            self._reading.add(key)
        self._readers.submit(self._read_one, key, self._below.get)

    def _read_one(self, key: str, get: Callable[[str], Segment | None]) -> None:
        segment = None
        try:
            segment = get(key)
        except Exception:
            log.exception("inferscale: reading a segment failed")
        self._read_done(key, segment, was_reading=True)

    def _read_done(self, key: str, segment: Segment | None, *, was_reading: bool) -> None:
        with self._news:
            if was_reading and key not in self._reading:
                segment = None  # forgotten while it was read
            self._reading.discard(key)
            self._read.append((key, segment))
            self._news.notify()

    def _collect_reads(self, *, wait: bool) -> None:
        with self._news:
            busy = self._reading or self._forgetting
            if wait and busy and not self._read and not self._report.forgotten:
                self._news.wait(IDLE_WAIT_SECONDS)
            done, self._read = self._read, []
        for key, segment in done:
            if segment is None:
                self._report.staged.append(Staged(key, Reason.MISSING))
                continue
            try:
                self._resident[key] = segment
            except StoreError as error:
                log.warning("inferscale: segment not kept: %s", error)
                self._report.staged.append(Staged(key, Reason.INTERNAL))
                continue
            self._report.staged.append(Staged(key, **self._described(segment)))

    def _tier_figures(self) -> list[dict[str, Any]]:
        """What each tier of this rank says of itself; host memory is the scheduler half's."""
        return tier_figures(self._below, self._resident)

    def _nbytes(self, n_tokens: int) -> int:
        return 0 if self._stack is None else n_tokens * self._stack.layout.bytes_per_token

    def _count(self, name: str) -> None:
        with self._news:
            self._report.counters[name] = self._report.counters.get(name, 0) + 1


def _nothing() -> None:
    return None


def _is_probe(step: CaptureStep) -> bool:
    return any(span.key.startswith(PROBE_KEY) for span in step.spans)


def _with_theta(hf_config: Mapping[str, Any], theta: float | None) -> Mapping[str, Any]:
    """The model's configuration with another rotary base, in both spellings of it."""
    if theta is None:
        return hf_config
    changed = {**hf_config, "rope_theta": theta}
    if isinstance(hf_config.get("rope_parameters"), Mapping):
        changed["rope_parameters"] = {**hf_config["rope_parameters"], "rope_theta": theta}
    return changed
