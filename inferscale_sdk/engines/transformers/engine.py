"""Client of a model in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from inferscale_sdk.config import settings
from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, EngineInfo, Sampling
from inferscale_sdk.engines.transformers.events import Computed, Event, Failed
from inferscale_sdk.engines.transformers.requests import Request, check_encode
from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.prompt.base import ChatTokenizer, EncodePlan, PromptPlan
from inferscale_sdk.protocol import EncodeAnswer, StatsAnswer

if TYPE_CHECKING:
    import torch

    from inferscale_sdk.engines.transformers.jobs import Sink

__all__ = ["TransformersEngine"]

_MIN_HOST_BYTES = 1 << 20


class TransformersEngine(Engine):
    """A Hugging Face model in this process, on CPU, CUDA or MPS.

    Needs no server. Segments lie in the same files as a vLLM server's and under the same model
    fingerprint, so that each can use what the other has encoded. One thread owns the model;
    requests from several threads and tasks are batched.

    Args:
        model: A folder or a model's name; by default the bundled SmolLM2.
        device: ``cpu``, ``cuda``, ``mps`` …; by default the best there is.
        dtype: What the model computes in; by default the dtype of its weights, on a CPU without
            fast 16-bit arithmetic float32.
        disk_path: Where KV is kept; by default under ``settings().home``.
        persist: ``False`` keeps KV in memory only.
        host_bytes: Budget for KV in memory.
        disk_bytes: Budget for KV on disk, ``None`` for no limit.
        max_batch: Answers generated together at most. Batched answers differ from single ones in
            the last bits, as on any server; 1 rules that out.
        max_model_len: Context length to keep to; by default the model's own.
        prefill_chunk_tokens: Prompt tokens computed at once at most.
        tokenizer: The model's tokenizer, or where to load it from; by default the model's.
        name: Name under which the engine presents itself; by default the model's.
        trust_remote_code: Run code that comes with the model.
        rope_theta: Rotary base to use in place of the configured one. A wrong one fails the probe.

    Raises:
        ConfigurationError: An argument is out of range, or there is no such model.
        MissingDependency: torch or transformers is not installed.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        disk_path: str | Path | None = None,
        persist: bool = True,
        host_bytes: int = 1 << 30,
        disk_bytes: int | None = None,
        max_batch: int = 8,
        max_model_len: int | None = None,
        prefill_chunk_tokens: int = 512,
        tokenizer: ChatTokenizer | str | Path | None = None,
        name: str | None = None,
        trust_remote_code: bool = False,
        rope_theta: float | None = None,
    ) -> None:
        _require("host_bytes", host_bytes, _MIN_HOST_BYTES)
        _require("max_batch", max_batch, 1)
        _require("prefill_chunk_tokens", prefill_chunk_tokens, 1)
        for package in ("torch", "transformers"):
            if find_spec(package) is None:
                raise MissingDependency(package, "transformers", "the embedded engine")
        from inferscale_sdk.engines.transformers.runtime import Runtime, RuntimeOptions

        source, own_name = _source(model)
        options = RuntimeOptions(
            device=device,
            dtype=dtype,
            disk_path=Path(disk_path or settings().home / "kv") if persist else None,
            host_bytes=host_bytes,
            disk_bytes=disk_bytes,
            max_batch=max_batch,
            max_model_len=max_model_len,
            prefill_chunk_tokens=prefill_chunk_tokens,
            trust_remote_code=trust_remote_code,
            rope_theta=rope_theta,
        )
        self._runtime = Runtime(source, name or own_name, options)
        self._tokenizer = tokenizer or source
        self._info: EngineInfo | None = None
        self._lock = threading.RLock()

    # -- identity --------------------------------------------------------------------------

    @property
    def tokenizer(self) -> ChatTokenizer:
        """See :attr:`Engine.tokenizer`."""
        with self._lock:
            if not isinstance(self._tokenizer, ChatTokenizer):
                from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer

                self._tokenizer = TransformersChatTokenizer(self._tokenizer)
            return self._tokenizer

    def info(self, *, refresh: bool = False) -> EngineInfo:
        """See :meth:`Engine.info`.

        ``details["unrotated_key_error"]`` is how far the paper's own form, keys taken before
        rotation, is from what the model wrote; ``None`` if the model does not let us look.
        """
        with self._lock:
            if self._info is None or refresh:
                self._info = self._runtime.describe()
            return self._info

    # -- memory ----------------------------------------------------------------------------

    def encode(self, plan: EncodePlan) -> EncodeAnswer:
        """See :meth:`Engine.encode`.

        Raises:
            IncompatibleModel: The engine cannot inject; see :meth:`info`.
        """
        refused = check_encode(self.info(), plan)
        if refused is not None:
            return refused
        events: SimpleQueue[Event] = SimpleQueue()
        with self._runtime.submitted(self._runtime.encode_job(plan, events.put)):
            return _encoded(events.get())

    async def aencode(self, plan: EncodePlan) -> EncodeAnswer:
        """Async twin of :meth:`encode`."""
        refused = check_encode(await self._ainfo(), plan)
        if refused is not None:
            return refused
        events, sink = _events_of_loop()
        with self._runtime.submitted(self._runtime.encode_job(plan, sink)):
            return _encoded(await events.get())

    def forget(self, keys: Sequence[str]) -> int:
        """See :meth:`Engine.forget`.

        Raises:
            StoreError: A file is there and cannot be removed.
        """
        core = self._runtime.ready()
        forgotten = core.store.forget(keys)
        core.count("forgotten_segments", forgotten)
        return forgotten

    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See :meth:`Engine.locate`."""
        return self._runtime.ready().store.locate(keys)

    def stats(self, report_ids: Sequence[str] = ()) -> StatsAnswer:
        """See :meth:`Engine.stats`. Reports come with the answers themselves, so none are kept."""
        core = self._runtime.ready()
        return StatsAnswer(counters=core.counters(), tiers=core.store.stats())

    # -- answers ---------------------------------------------------------------------------

    def generate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """See :meth:`Engine.generate`.

        Raises:
            ConfigurationError: ``sampling`` asks for what this engine cannot do.
        """
        request = Request.open(self.info(), plan, sampling, stream=False)
        with closing(self._run(request)) as chunks:
            return _last([chunk.completion for chunk in chunks])

    async def agenerate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Async twin of :meth:`generate`."""
        request = Request.open(await self._ainfo(), plan, sampling, stream=False)
        async with aclosing(self._arun(request)) as chunks:
            return _last([chunk.completion async for chunk in chunks])

    def stream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> Iterator[CompletionChunk]:
        """See :meth:`Engine.stream`. Errors of the plan are raised by the call itself."""
        return self._run(Request.open(self.info(), plan, sampling, stream=True))

    async def astream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> AsyncIterator[CompletionChunk]:
        """Async twin of :meth:`stream`."""
        request = Request.open(await self._ainfo(), plan, sampling, stream=True)
        # Closed by name: an abandoned async generator would be closed at some later time.
        async with aclosing(self._arun(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """See :meth:`Engine.close`. Requests under way fail."""
        self._runtime.close()

    async def aclose(self) -> None:
        """Async twin of :meth:`close`."""
        await asyncio.to_thread(self.close)

    # -- inside ----------------------------------------------------------------------------

    async def _ainfo(self) -> EngineInfo:
        # The first call runs the probe; it must not hold up the event loop.
        info = self._info
        return info if info is not None else await asyncio.to_thread(self.info)

    def _run(self, request: Request) -> Generator[CompletionChunk, None, None]:
        events: SimpleQueue[Event] = SimpleQueue()
        job = self._runtime.generate_job(request, self.tokenizer.decode, events.put)
        request.start()
        self._runtime.store.warm(segment.key for segment in request.segments)
        with self._runtime.submitted(job):
            chunk = request.feed(events.get())
            while chunk.completion is None:
                yield chunk
                chunk = request.feed(events.get())
            yield chunk

    async def _arun(self, request: Request) -> AsyncGenerator[CompletionChunk, None]:
        events, sink = _events_of_loop()
        job = self._runtime.generate_job(request, self.tokenizer.decode, sink)
        request.start()
        keys = [segment.key for segment in request.segments]
        await asyncio.to_thread(self._runtime.store.warm, keys)
        with self._runtime.submitted(job):
            chunk = request.feed(await events.get())
            while chunk.completion is None:
                yield chunk
                chunk = request.feed(await events.get())
            yield chunk


def _events_of_loop() -> tuple[asyncio.Queue[Event], Sink]:
    """A queue of the running event loop, and how another thread puts events into it."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def sink(event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    return events, sink


def _encoded(event: Event) -> EncodeAnswer:
    if isinstance(event, Failed):
        raise event.error
    assert isinstance(event, Computed)
    return event.answer


def _last(completions: Sequence[Completion | None]) -> Completion:
    """What the last chunk of an answer carries."""
    last = completions[-1]
    assert last is not None
    return last


def _require(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name}={value} must be at least {least}")


def _source(model: str | Path | None) -> tuple[str, str]:
    """Where to load a model from, and what to call it."""
    if model is None:
        from inferscale_sdk.models import BUNDLED_MODEL, bundled_model_path

        return str(bundled_model_path()), BUNDLED_MODEL
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path), path.resolve().name
    if isinstance(model, Path) or path.is_absolute() or str(model).startswith((".", "~")):
        raise ConfigurationError(
            f"model={str(model)!r} is not a folder; give the folder of a model or a model's name"
        )
    return model, model
