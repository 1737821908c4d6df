"""The scheduler half without an engine: what vLLM would hand to it, and what ranks would say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import connector_harness  # noqa: F401 - imports vllm, whose own warnings it switches off

from inferscale_sdk.protocol import FIELD
from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.metadata import Commands, Hello, WorkerReport
from inferscale_sdk.vllm_connector.scheduler import SchedulerHalf


def hello(world_size: int, text_only_reason: str = "") -> Hello:
    return Hello(2, 64, "bfloat16", world_size=world_size, text_only_reason=text_only_reason)


def scheduler_of(*ranks: Hello, **config: Any) -> SchedulerHalf:
    """A scheduler half that has met its ranks."""
    identity: Any = SimpleNamespace(fingerprint="model")
    half = SchedulerHalf(ConnectorConfig(**config), identity)
    half.absorb(WorkerReport(hello=list(ranks)))
    return half


def ask(
    half: SchedulerHalf, request_id: str, op: Any, prompt: list[int], salt: str | None = None
) -> Any:
    """A request has come."""
    asked = SimpleNamespace(
        request_id=request_id,
        kv_transfer_params={FIELD: op.model_dump(mode="json")},
        prompt_token_ids=prompt,
        mm_features=[],
        lora_request=None,
        cache_salt=salt,
    )
    half.on_new_request(asked)
    return asked


def step(half: SchedulerHalf, *computed: tuple[str, int, int]) -> Commands:
    """A step that computes, of each request, tokens from and to."""
    output: Any = SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=first) for name, first, _ in computed
        ],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={name: last - first for name, first, last in computed},
        total_num_scheduled_tokens=sum(last - first for _, first, last in computed),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda request_id: ([0],)),
    )
    return half.commands(output)
