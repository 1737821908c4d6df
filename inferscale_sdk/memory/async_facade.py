"""``AsyncMemory``: the verbs of ``Memory`` as coroutines."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, TypeVar

from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, Sampling
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.memory.answer_verbs import as_answer
from inferscale_sdk.memory.facade import Memory
from inferscale_sdk.memory.values import Answer

__all__ = ["AsyncMemory"]

P = ParamSpec("P")
T = TypeVar("T")

_WAIT_SLICE_SECONDS = 0.25


def _in_thread(
    verb: Callable[Concatenate[Memory, P], T],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
    """The verb as a coroutine that runs it in a thread: databases and embedders block."""

    @functools.wraps(verb)
    async def run(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self._memory, *args, **kwargs)

    return run


def _twin_of(
    verb: Callable[Concatenate[Memory, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]]:
    """Gives a coroutine function the verb's signature and documentation."""

    def dress(
        function: Callable[..., Any],
    ) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
        return functools.wraps(verb)(function)

    return dress


def _stream_twin_of(
    verb: Callable[Concatenate[Memory, P], Iterator[T]],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[AsyncMemory, P], AsyncIterator[T]]]:
    """Gives an async generator function the verb's signature and documentation."""

    def dress(
        function: Callable[..., Any],
    ) -> Callable[Concatenate[AsyncMemory, P], AsyncIterator[T]]:
        return functools.wraps(verb)(function)

    return dress


class AsyncMemory:
    """:class:`Memory` for asyncio: the same arguments, the same verbs, as coroutines.

    Store and embedder work in threads, the engine answers without blocking the event loop.
    Cancelling ``answer`` or closing ``stream`` stops the engine's work; a write that has begun is
    finished all the same, so that nothing is half stored.

    Args:
        *args: As for :class:`Memory`.
        **kwargs: As for :class:`Memory`.
    """

    _memory: Memory

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._memory = Memory(*args, **kwargs)

    @classmethod
    def wrap(cls, memory: Memory) -> AsyncMemory:
        """The async side of a memory at hand. Closing either closes both."""
        wrapped = cls.__new__(cls)
        wrapped._memory = memory
        return wrapped

    def unwrap(self) -> Memory:
        """The memory whose async side this is."""
        return self._memory

    @property
    def store(self) -> FactStore:
        """The store of facts."""
        return self._memory.store

    @property
    def engine(self) -> Engine | None:
        """Who answers, if anyone."""
        return self._memory.engine

    add = _in_thread(Memory.add)
    add_facts = _in_thread(Memory.add_facts)
    search = _in_thread(Memory.search)
    get = _in_thread(Memory.get)
    get_all = _in_thread(Memory.get_all)
    count = _in_thread(Memory.count)
    history = _in_thread(Memory.history)
    update = _in_thread(Memory.update)
    delete = _in_thread(Memory.delete)
    delete_all = _in_thread(Memory.delete_all)
    reset = _in_thread(Memory.reset)
    handles = _in_thread(Memory.handles)
    mint = _in_thread(Memory.mint)
    resolve = _in_thread(Memory.resolve)
    prepare = _in_thread(Memory.prepare)
    refresh = _in_thread(Memory.refresh)
    observe = _in_thread(Memory.observe)
    stats = _in_thread(Memory.stats)
    close = _in_thread(Memory.close)

    @_twin_of(Memory.complete)
    async def complete(self, plan: Any, *, sampling: Sampling | None = None) -> Completion:
        """Send a prepared plan."""
        sender = self._memory._parts.serving.sender
        return (await sender.agenerate(plan, sampling or Sampling()))[1]

    @_stream_twin_of(Memory.complete_stream)
    async def complete_stream(
        self, plan: Any, *, sampling: Sampling | None = None
    ) -> AsyncIterator[CompletionChunk]:
        """Send a prepared plan; text as it comes."""
        async with aclosing(self._send_stream(plan, sampling or Sampling())) as chunks:
            async for chunk in chunks:
                yield chunk

    @_twin_of(Memory.answer)
    async def answer(self, question: Any, **kwargs: Any) -> Answer:
        """Answer with what is remembered."""
        plan, sampling = await asyncio.to_thread(self._memory._plan_answer, question, **kwargs)
        return as_answer(*await self._memory._parts.serving.sender.agenerate(plan, sampling))

    @_stream_twin_of(Memory.stream)
    async def stream(self, question: Any, **kwargs: Any) -> AsyncIterator[CompletionChunk]:
        """:meth:`answer` as it comes."""
        plan, sampling = await asyncio.to_thread(self._memory._plan_answer, question, **kwargs)
        async with aclosing(self._send_stream(plan, sampling)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _send_stream(self, plan: Any, sampling: Sampling) -> AsyncGenerator[CompletionChunk, None]:
        # Its users close it by name: an abandoned async generator, even one inside another that
        # is closed, would be closed at some later time, and the engine work on till then.
        return self._memory._parts.serving.sender.astream(plan, sampling)

    @_twin_of(Memory.wait_encoded)
    async def wait_encoded(self, timeout: float | None = None, **kwargs: Any) -> bool:  # noqa: ASYNC109
        """Wait until every fact that can be encoded is."""
        # In slices: a cancelled wait must not leave a thread waiting behind it.
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            part = _WAIT_SLICE_SECONDS if left is None else min(left, _WAIT_SLICE_SECONDS)
            if await asyncio.to_thread(self._memory.wait_encoded, part, **kwargs):
                return True
            if left == 0.0 or not self._memory._parts.may_encode:
                return False

    @_twin_of(Memory.flush)
    async def flush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Index, forget, and wait."""
        await asyncio.to_thread(self._memory.flush, 0.0)
        return await self.wait_encoded(timeout)

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
