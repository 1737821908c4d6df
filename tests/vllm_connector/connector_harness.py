"""A vLLM engine in this process, with its connector within reach."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.lora.request import LoRARequest

    from inferscale_sdk.vllm_connector.connector import InferScaleConnector

from inferscale_sdk.hardware import cpu_dtype
from inferscale_sdk.kv.key import segment_key
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.protocol import (
    FIELD,
    PROBE_TOKENS,
    CaptureSpan,
    EncodeOp,
    InjectOp,
    PingAnswer,
    PingOp,
    ProbeOp,
    SegmentRef,
    salt_suffix,
)
from inferscale_sdk.server import connector_name
from inferscale_sdk.vllm_connector.layers import slots_of

BLOCK = 128
# A CPU without fast 16-bit arithmetic is slow and coarse in bfloat16; there it is not used either.
DTYPE = "float32" if cpu_dtype() == "float32" else "bfloat16"


@dataclass
class Outcome:
    """What one request came back with."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, float]]
    answer: dict[str, Any] | None
    n_cached: int


@dataclass
class Harness:
    """Requests with operations, and the connector's two halves."""

    llm: LLM
    disk: Path
    ping: PingAnswer | None = None
    lora: LoRARequest | None = None
    prefix_caching: bool = True
    single_process: bool = True

    @property
    def fingerprint(self) -> str:
        assert self.ping is not None
        return self.ping.fingerprint

    @property
    def worker(self) -> Any:
        connector = get_kv_transfer_group()
        assert isinstance(connector, InferScaleConnector)
        return connector.worker

    @property
    def scheduler(self) -> Any:
        core = self.llm.llm_engine.engine_core.engine_core
        return core.scheduler.connector.scheduler

    @property
    def _vllm_scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def free_blocks(self) -> int:
        """Blocks of vLLM's cache that no request holds."""
        return int(self._vllm_scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @contextmanager
    def few_blocks(self, n: int) -> Iterator[list[str]]:
        """All free blocks but ``n`` are taken; ids of requests that are preempted for want of them.

        For the length of a block of code, on an empty prefix cache.
        """
        scheduler, preempted = self._vllm_scheduler, list[str]()
        scheduler.kv_cache_manager.reset_prefix_cache()
        pool, preempt = scheduler.kv_cache_manager.block_pool, scheduler._preempt_request

        def spy(request: Any, *args: Any, **kwargs: Any) -> Any:
            preempted.append(request.request_id)
            return preempt(request, *args, **kwargs)

        held = pool.get_new_blocks(pool.get_num_free_blocks() - n)
        scheduler._preempt_request = spy
        try:
            yield preempted
        finally:
            scheduler._preempt_request = preempt
            pool.free_blocks(held)

    def leftovers(self) -> list[str]:
        """What the connector still holds on to, though no request runs."""
        half = self.scheduler
        found = {
            "pinned": half._core.index.stats()["pinned_bytes"],
            "jobs": half._jobs,
            "leaving": half._leaving,
            "loads": half._core.loads,
            "orders": half._core.orders,
            "reading": self.worker._reading,
        }
        return [name for name, left in found.items() if left]

    def encode_text(self, text: str) -> list[int]:
        return self.llm.get_tokenizer().encode(text, add_special_tokens=False)

    def ask_many(
        self, requests: Sequence[tuple[list[int], Any, str | None]], n: int = 1, **sampling: Any
    ) -> list[Outcome]:
        """Requests as (prompt, operation or raw object, salt), run together in one batch."""
        prompts, params = [], []
        for prompt, op, salt in requests:
            raw = op.model_dump(mode="json") if hasattr(op, "model_dump") else op
            extra = {"kv_transfer_params": {FIELD: raw}} if raw is not None else None
            prompt_dict: dict[str, Any] = {"prompt_token_ids": prompt}
            if salt is not None:
                prompt_dict["cache_salt"] = salt
            prompts.append(prompt_dict)
            params.append(SamplingParams(max_tokens=n, temperature=0, extra_args=extra, **sampling))
        outputs = self.llm.generate(prompts, params, use_tqdm=False, lora_request=self.lora)
        return [_outcome(output) for output in outputs]

    def ask(
        self, prompt: list[int], op: Any = None, *, salt: str | None = "", n: int = 1, **kw: Any
    ) -> Outcome:
        salt = secrets.token_hex(8) if salt == "" else salt
        return self.ask_many([(prompt, op, salt)], n, **kw)[0]

    def encode(
        self, prompt: list[int], bounds: Sequence[tuple[int, int]], *, tag: str = "t"
    ) -> list[str]:
        """Capture spans of ``prompt``; returns their keys, all stored."""
        spans = [
            CaptureSpan(key=key_of(tag, self.fingerprint, prompt, a, b), start=a, stop=b)
            for a, b in bounds
        ]
        op = EncodeOp(fingerprint=self.fingerprint, captures=tuple(spans))
        # One token more than the spans need: a prompt may end where its last span does.
        answer = self.ask(prompt, op, n=2).answer
        assert answer is not None
        assert answer["stored"] == [span.key for span in spans], answer
        return [span.key for span in spans]

    def inject_op(self, segments: Sequence[tuple[str, int]]) -> tuple[InjectOp, str]:
        """The operation for (key, n_tokens) segments, and a fresh salt bound to it."""
        refs = tuple(SegmentRef(key=key, n_tokens=n) for key, n in segments)
        salt = f"{secrets.token_hex(8)}:{salt_suffix([key for key, _ in segments])}"
        return InjectOp(fingerprint=self.fingerprint, segments=refs), salt

    def inject(
        self, prompt: list[int], segments: Sequence[tuple[str, int]], *, n: int = 2, **kw: Any
    ) -> Outcome:
        op, salt = self.inject_op(segments)
        return self.ask(prompt, op, salt=salt, n=n, **kw)

    def resident(self, key: str) -> Segment:
        return self.worker._resident[key]

    @contextmanager
    def spy_on_layer(self, layer: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """What injections write to one layer meanwhile.

        Yields:
            Keys and values, each ``[token, kv_head, head_dim]``, of each injection.
        """
        written: list[tuple[torch.Tensor, torch.Tensor]] = []
        loader, stack = self.worker._loader, self.worker._stack
        write, load = type(stack).write, type(loader).load

        def spy_write(self: Any, index: int, keys: Any, values: Any, slots: Any) -> None:
            if index == layer:
                written.append((keys.clone(), values.clone()))
            write(self, index, keys, values, slots)

        def spy_load(self: Any, plan: Any, segments: Any) -> None:
            load(self, plan, segments)
            cache = self._writer._cache
            at = slots_of(plan.block_ids, plan.first, plan.last, stack.block_size)
            page = cache.keys[layer].shape[1]
            read = (side[layer][at // page, at % page] for side in (cache.keys, cache.values))
            written.append(tuple(part.clone() for part in read))

        if loader._writer is None:
            type(stack).write = spy_write
        else:
            type(loader).load = spy_load
        try:
            yield written
        finally:
            type(stack).write, type(loader).load = write, load

    def write_layer_by_layer(self, patch: Any) -> None:
        """Without the kernel that writes all layers at once."""
        patch.setattr(self.worker._loader, "_writer", None)

    def drop_resident(self) -> None:
        """As after a restart: nothing in memory, everything on disk."""
        index = self.scheduler._core.index
        index.remove(list(index._resident))
        self.worker._resident.clear()


def key_of(tag: str, fingerprint: str, prompt: list[int], start: int, stop: int) -> str:
    return segment_key(
        fingerprint=fingerprint,
        frame_version="test",
        secret=tag.encode().ljust(32, b"."),
        context_ids=prompt[:start],
        own_ids=prompt[start:stop],
    )


def _outcome(output: Any) -> Outcome:
    completion = output.outputs[0]
    logprobs = [
        {token: entry.logprob for token, entry in step.items()}
        for step in completion.logprobs or []
    ]
    params = output.kv_transfer_params or {}
    return Outcome(
        completion.text,
        list(completion.token_ids),
        logprobs,
        params.get(FIELD),
        output.num_cached_tokens or 0,
    )


def start_harness(
    model: Path,
    disk: Path,
    *,
    dtype: str = DTYPE,
    adapter: Path | None = None,
    engine: dict[str, Any] | None = None,
    **extra: Any,
) -> Harness:
    """An engine on ``model`` whose connector has been probed.

    ``engine`` are arguments of ``vllm.LLM``, ``extra`` entries of the connector's configuration.
    """
    arguments: dict[str, Any] = {
        "enforce_eager": True,
        "dtype": dtype,
        "max_model_len": 4096,
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 16,
        "seed": 0,
        "kv_transfer_config": {
            "kv_connector": connector_name(model),
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_module_path": "inferscale_sdk.vllm_connector.connector",
            "kv_connector_extra_config": {
                "disk_path": str(disk),
                "host_bytes": 512 << 20,
                **extra,
            },
        },
        **(engine or {}),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llm = LLM(str(model), **arguments)
    harness = Harness(
        llm,
        disk,
        lora=LoRARequest("adapter", 1, str(adapter)) if adapter else None,
        prefix_caching=arguments.get("enable_prefix_caching", True),
        single_process=arguments.get("tensor_parallel_size", 1) == 1,
    )
    harness.ping = PingAnswer.model_validate(harness.ask([5], PingOp()).answer)
    harness.ask([harness.ping.probe_token_id] * PROBE_TOKENS, ProbeOp(), n=2)
    harness.ping = PingAnswer.model_validate(harness.ask([5], PingOp()).answer)
    return harness
