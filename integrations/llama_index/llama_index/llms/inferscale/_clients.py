"""The streams that a call opens, so that they can be closed.

The base class keeps the client's stream to itself. An answer that nobody reads on would go on
being computed until the garbage collector comes by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeVar

import openai

__all__ = ["OpenStreams", "recorded", "recording"]

Client = TypeVar("Client", openai.OpenAI, openai.AsyncOpenAI)


class OpenStreams:
    """What one call has opened."""

    def __init__(self) -> None:
        self._streams: list[Any] = []
        self._is_async = False

    def client(self, client: Any) -> Any:
        """``client`` as far as the base class uses it; the streams it opens are noted."""
        self._is_async = isinstance(client, openai.AsyncOpenAI)
        chat = SimpleNamespace(create=self._noting(client.chat.completions.create))
        text = SimpleNamespace(create=self._noting(client.completions.create))
        return SimpleNamespace(chat=SimpleNamespace(completions=chat), completions=text)

    def close(self) -> None:
        """Close them: the server stops working."""
        for stream in self._streams:
            stream.close()

    async def aclose(self) -> None:
        """Async twin of :meth:`close`."""
        for stream in self._streams:
            await stream.close()

    def _noting(self, create: Any) -> Any:
        def sync(**kwargs: Any) -> Any:
            stream = create(**kwargs)
            self._streams.append(stream)
            return stream

        async def later(**kwargs: Any) -> Any:
            stream = await create(**kwargs)
            self._streams.append(stream)
            return stream

        return later if self._is_async else sync


_current: ContextVar[OpenStreams | None] = ContextVar("inferscale_open_streams", default=None)


@contextmanager
def recording() -> Iterator[OpenStreams]:
    """While this lasts, clients handed out in this context note the streams they open."""
    streams = OpenStreams()
    token = _current.set(streams)
    try:
        yield streams
    finally:
        _current.reset(token)


def recorded(client: Client) -> Client:
    """``client``, noting its streams if somebody asked for it."""
    streams = _current.get()
    if streams is None:
        return client
    noting: Client = streams.client(client)
    return noting
