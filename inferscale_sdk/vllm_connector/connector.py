"""The facade that vLLM loads: one object per role, each hook passed to the half it belongs to.

Load it by path (``kv_connector_module_path``), or by name once the ``vllm.general_plugins`` entry
point has registered it. Its settings are
:class:`~inferscale_sdk.vllm_connector.config.ConnectorConfig`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.identity import identify
from inferscale_sdk.vllm_connector.metadata import Commands, WorkerReport
from inferscale_sdk.vllm_connector.metrics import ConnectorStats, PromMetrics
from inferscale_sdk.vllm_connector.parent import end_with_parent
from inferscale_sdk.vllm_connector.scheduler import SchedulerHalf
from inferscale_sdk.vllm_connector.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["InferScaleConnector", "InferScaleTextConnector"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(default: Callable[[], R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An exception in a hook would end the whole engine: log it and give the harmless answer."""

    def decorate(hook: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(hook)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return hook(*args, **kwargs)
            except Exception:
                log.exception("inferscale: %s failed; memory is served as text", hook.__name__)
                return default()

        return call

    return decorate


def _nothing() -> None:
    return None


def _no_match() -> tuple[int | None, bool]:
    return 0, False


def _no_answer() -> tuple[bool, dict[str, Any] | None]:
    return False, None


def _no_blocks() -> set[int]:
    return set()


def _no_stats() -> ConnectorStats | None:
    return None


def _no_report() -> KVConnectorWorkerMetadata | None:
    return None


class InferScaleConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Stores facts' KV as the engine computes it and injects it anywhere in later prompts."""

    _cache_hit_source = CacheHitSource.HOST
    text_only_reason = ""

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = ConnectorConfig.from_extra(self._kv_transfer_config.kv_connector_extra_config)
        identity = identify(vllm_config, config)
        parallel = vllm_config.parallel_config
        self.scheduler: SchedulerHalf | None = None
        self.worker: WorkerHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            server_id = str(self._kv_transfer_config.engine_id)
            self.scheduler = SchedulerHalf(config, identity, server_id=server_id)
            end_with_parent()
        else:
            self.worker = WorkerHalf(
                config,
                vllm_config,
                identity,
                rank=parallel.rank,
                world_size=parallel.world_size,
                text_only_reason=self.text_only_reason,
            )

    @property
    def _scheduler(self) -> SchedulerHalf:
        assert self.scheduler is not None, "a scheduler hook was called on the worker's connector"
        return self.scheduler

    @property
    def _worker(self) -> WorkerHalf:
        assert self.worker is not None, "a worker hook was called on the scheduler's connector"
        return self.worker

    # -- both, and the process that serves HTTP ------------------------------------------------

    @_guarded(_no_stats)
    def get_kv_connector_stats(self) -> ConnectorStats | None:
        half = self.scheduler or self.worker
        return None if half is None else half.meter.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        return ConnectorStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- scheduler ---------------------------------------------------------------------------

    @_guarded(_nothing)
    def on_new_request(self, request: Request) -> None:
        self._scheduler.on_new_request(request)

    @_guarded(_no_match)
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens), False

    @_guarded(_nothing)
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        block_ids = tuple(blocks.get_block_ids()[0])
        self._scheduler.allocated(request, block_ids, num_external_tokens)

    @_guarded(Commands)
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Commands:
        return self._scheduler.commands(scheduler_output)

    @_guarded(_nothing)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            self._scheduler.absorb(report)

    @_guarded(_no_answer)
    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        del block_ids
        return False, self._scheduler.finished(request)

    # -- worker ------------------------------------------------------------------------------

    @_guarded(_nothing)
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    @_guarded(_nothing)
    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Commands)
        self._worker.begin(connector_metadata)

    @_guarded(_nothing)
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        del forward_context, kwargs
        self._worker.load()

    @_guarded(_nothing)
    def wait_for_layer_load(self, layer_name: str) -> None:
        del layer_name

    @_guarded(_nothing)
    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        del layer_name, kv_layer, attn_metadata, kwargs

    @_guarded(_nothing)
    def wait_for_save(self) -> None:
        self._worker.end()

    @_guarded(_no_blocks)
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks()

    @_guarded(_no_report)
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker.take_report()

    @_guarded(_nothing)
    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()


class InferScaleTextConnector(InferScaleConnector, SupportsHMA):  # type: ignore[misc]
    """For models with recurrent state: every operation is answered, memory is served as text.

    vLLM runs such models with its hybrid cache manager only, which keeps several caches of
    different kinds; a fact's share of a recurrent state cannot be cut out and moved.
    """

    text_only_reason = (
        "the model has layers with recurrent state (Mamba or linear attention), which mixes all "
        "tokens before it; a fact's share cannot be stored and moved on its own"
    )

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0] if block_ids else [])
