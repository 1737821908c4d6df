"""Streams that end with a report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeVar

import openai
from llama_index.core.base.llms.types import ChatResponse, CompletionResponse
from llama_index.llms.inferscale._clients import OpenStreams, recording
from llama_index.llms.inferscale._turn import Turn, has_usage

from inferscale_sdk import InjectionReport

__all__ = ["acarried", "carried"]

Response = TypeVar("Response", ChatResponse, CompletionResponse)
Again = Callable[[Turn, openai.APIStatusError], Turn]
Report = Callable[[Turn], InjectionReport]


def carried(
    turn: Turn,
    send: Callable[[Turn], Generator[Response, None, None]],
    again: Again,
    report: Report,
) -> Generator[Response, None, None]:
    """The chunks of an answer; the last one carries the report. Closing it stops the server.

    Args:
        turn: The prepared call.
        send: Sends it.
        again: The call without injection, if the server fails before anything was said.
        report: What became of the memory, asked at the end.
    """
    opened: OpenStreams | None = None
    last: Response | None = None
    try:
        try:
            chunks, opened = _begin(turn, send)
            chunk = next(chunks, None)
        except openai.APIStatusError as error:
            turn = again(turn, error)
            chunks, opened = _begin(turn, send)
            chunk = next(chunks, None)
        while chunk is not None:
            last, is_last = _noted(turn, chunk)
            if not is_last:
                yield chunk
            chunk = next(chunks, None)
    finally:
        if opened is not None:
            opened.close()
    if last is not None:
        yield turn.with_report(_closing(last), report(turn))


async def acarried(
    turn: Turn,
    send: Callable[[Turn], Awaitable[AsyncGenerator[Response, None]]],
    again: Again,
    report: Report,
) -> AsyncGenerator[Response, None]:
    """Async twin of :func:`carried`."""
    opened: OpenStreams | None = None
    last: Response | None = None
    try:
        try:
            chunks, opened = await _abegin(turn, send)
            chunk = await anext(chunks, None)
        except openai.APIStatusError as error:
            turn = await asyncio.to_thread(again, turn, error)
            chunks, opened = await _abegin(turn, send)
            chunk = await anext(chunks, None)
        while chunk is not None:
            last, is_last = _noted(turn, chunk)
            if not is_last:
                yield chunk
            chunk = await anext(chunks, None)
    finally:
        if opened is not None:
            await opened.aclose()
    if last is not None:
        yield turn.with_report(_closing(last), await asyncio.to_thread(report, turn))


def _begin(
    turn: Turn, send: Callable[[Turn], Generator[Response, None, None]]
) -> tuple[Generator[Response, None, None], OpenStreams]:
    turn.request.start()
    with recording() as opened:
        return send(turn), opened


async def _abegin(
    turn: Turn, send: Callable[[Turn], Awaitable[AsyncGenerator[Response, None]]]
) -> tuple[AsyncGenerator[Response, None], OpenStreams]:
    turn.request.start()
    with recording() as opened:
        return await send(turn), opened


def _noted(turn: Turn, chunk: Response) -> tuple[Response, bool]:
    """Take note of a chunk; whether it is the closing one, which has the usage and no choices."""
    usage = has_usage(chunk.raw)
    choices = getattr(chunk.raw, "choices", None) or ()
    if usage is not None and not choices:
        turn.request.count(usage)
        return chunk, True
    if any(_says_something(choice) for choice in choices):
        turn.request.spoke()
    return chunk, False


def _says_something(choice: Any) -> bool:
    delta = getattr(choice, "delta", None)
    said = getattr(choice, "text", None) or getattr(choice, "finish_reason", None)
    return bool(said or getattr(delta, "content", None) or getattr(delta, "tool_calls", None))


def _closing(last: Response) -> Response:
    """The last chunk, or what follows it if the server sent no closing one: nothing new."""
    return last.model_copy(update={"delta": "", "additional_kwargs": dict(last.additional_kwargs)})
