"""A loaded model with its segments and its thread."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inferscale_sdk._version import __version__
from inferscale_sdk.engines.base import EngineInfo
from inferscale_sdk.engines.transformers.jobs import Core, EncodeJob, GenerateJob, Job, Sink
from inferscale_sdk.engines.transformers.loading import load_model
from inferscale_sdk.engines.transformers.proving import prove
from inferscale_sdk.engines.transformers.requests import Request
from inferscale_sdk.engines.transformers.runner import Runner
from inferscale_sdk.engines.transformers.sampling import Chooser
from inferscale_sdk.engines.transformers.scheduler import Scheduler
from inferscale_sdk.engines.transformers.segments import SegmentStore
from inferscale_sdk.engines.transformers.text import TextStream
from inferscale_sdk.errors import EngineUnavailable
from inferscale_sdk.kv.layout import dtype_name
from inferscale_sdk.prompt.base import EncodePlan

__all__ = ["Runtime", "RuntimeOptions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """See :class:`~inferscale_sdk.engines.transformers.engine.TransformersEngine`.

    ``disk_path`` is ``None`` for memory only.
    """

    device: str | torch.device | None
    dtype: str | torch.dtype | None
    disk_path: Path | None
    host_bytes: int
    disk_bytes: int | None
    max_batch: int
    max_model_len: int | None
    prefill_chunk_tokens: int
    trust_remote_code: bool
    rope_theta: float | None


class Runtime:
    """Loads the model when built, proves it and starts its thread on first use.

    Args:
        source: Where the model is.
        name: What to call it.
        options: How to run it.

    Raises:
        ConfigurationError: There is no such model, device or dtype.
    """

    def __init__(self, source: str, name: str, options: RuntimeOptions) -> None:
        self._source, self._name, self._options = source, name, options
        folder = options.disk_path
        self.model = load_model(
            source,
            device=options.device,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            digest_cache=folder / "fingerprints.json" if folder else None,
            trust_remote_code=options.trust_remote_code,
        )
        self.store = SegmentStore(
            self.model.fingerprint,
            host_bytes=options.host_bytes,
            disk_path=folder,
            disk_bytes=options.disk_bytes,
        )
        self._core: Core | None = None
        self._scheduler: Scheduler | None = None
        self._closed = False
        self._lock = threading.RLock()

    def ready(self) -> Core:
        """The model, proved, with a thread that runs it.

        Raises:
            EngineUnavailable: It is closed.
        """
        with self._lock:
            if self._closed:
                raise EngineUnavailable("the engine is closed; build another TransformersEngine")
            if self._core is None:
                runner = Runner(self.model)
                proof = prove(self.model, runner, rope_theta=self._options.rope_theta)
                if proof.verdict.status != "exact":
                    log.warning("memory is given as prompt text: %s", proof.verdict.reason)
                self._core = Core(self.model, runner, proof, self.store)
                self._scheduler = Scheduler(
                    self._core,
                    max_batch=self._options.max_batch,
                    prefill_chunk_tokens=self._options.prefill_chunk_tokens,
                )
                # An engine that was dropped without being closed leaves no thread behind.
                weakref.finalize(self, self._scheduler.close)
            return self._core

    def describe(self) -> EngineInfo:
        """Identity and abilities as they are now."""
        core = self.ready()
        proof, layout = core.proof, core.proof.layout
        details: dict[str, Any] = {
            "root": self._source,
            "device": str(self.model.device),
            "dtype": dtype_name(self.model.dtype),
            "n_layers": self.model.n_layers,
            "sdk_version": __version__,
            "fingerprint": self.model.fingerprint,
            "unrotated_key_error": proof.unrotated_error,
            "tiers": self.store.stats(),
        }
        return EngineInfo(
            model=self._name,
            fingerprint=self.model.fingerprint if core.injects else "",
            max_model_len=self.model.max_model_len,
            can_inject=core.injects,
            reason=proof.verdict.reason,
            bytes_per_token=layout.bytes_per_token if layout is not None else 0,
            probe=proof.verdict,
            details=details,
        )

    # -- requests --------------------------------------------------------------------------

    def encode_job(self, plan: EncodePlan, sink: Sink) -> Job:
        """What captures a plan's spans."""
        return EncodeJob(plan.token_ids, plan.op, sink)

    def generate_job(
        self, request: Request, decode: Callable[[Sequence[int]], str], sink: Sink
    ) -> Job:
        """What answers a request; ``decode`` makes text of token ids."""
        sampling, options = request.sampling, request.options
        eos_ids = frozenset() if options.ignore_eos else self.model.eos_ids
        return GenerateJob(
            request.plan.token_ids,
            request.segments,
            owner=request.plan.owner,
            chooser=Chooser(sampling, options),
            text=TextStream(decode, sampling.stop),
            max_tokens=sampling.max_tokens,
            end_ids=eos_ids | options.stop_token_ids,
            sink=sink,
        )

    @contextmanager
    def submitted(self, job: Job) -> Iterator[None]:
        """Have a job run for as long as somebody waits for it.

        Raises:
            EngineUnavailable: The engine is closed.
        """
        with self._lock:
            self.ready()
            assert self._scheduler is not None
            self._scheduler.submit(job)
        try:
            yield
        finally:
            job.cancel()

    def close(self) -> None:
        """Stop; requests under way fail. Twice is fine."""
        with self._lock:
            self._closed = True
            scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.close()
        self.store.close()
