"""OpenTelemetry spans, where the application has a tracer; nothing otherwise.

Spans carry counts, token numbers and reasons. They never carry text: neither facts nor questions,
nor an exception's message, which may quote either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from inferscale_sdk._version import __version__

__all__ = ["Span", "begin", "span"]

PREFIX = "inferscale."
Value = str | int | float | bool


class Span:
    """A span, or none.

    Args:
        span: OpenTelemetry's span; ``None`` without OpenTelemetry.
    """

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **attributes: Value) -> None:
        """Set attributes, under ``inferscale.``."""
        if self._span is not None and self._span.is_recording():
            self._span.set_attributes({PREFIX + name: value for name, value in attributes.items()})

    def failed(self, error: BaseException) -> None:
        """Mark as failed, with the kind of error and without its message."""
        if self._span is None or not self._span.is_recording():
            return
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))

    def end(self) -> None:
        """End it. Twice is fine."""
        if self._span is not None and self._span.is_recording():
            self._span.end()


def begin(name: str, **attributes: Value) -> Span:
    """Start a span that is not current; end it with :meth:`Span.end`. For generators."""
    tracer = _tracer()
    if tracer is None:
        return Span()
    started = Span(tracer.start_span(PREFIX + name))
    started.set(**attributes)
    return started


@contextmanager
def span(name: str, **attributes: Value) -> Iterator[Span]:
    """A span around a block, and parent of spans inside it."""
    tracer = _tracer()
    if tracer is None:
        yield Span()
        return
    with tracer.start_as_current_span(
        PREFIX + name, record_exception=False, set_status_on_exception=False
    ) as current:
        wrapped = Span(current)
        wrapped.set(**attributes)
        try:
            yield wrapped
        except Exception as error:
            wrapped.failed(error)
            raise


@cache
def _tracer() -> Any:
    """A tracer of whatever provider the application has set, or sets later."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("inferscale_sdk", __version__)
