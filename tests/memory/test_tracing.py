"""Spans for applications that trace; counts and reasons, never text."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import EngineError, EngineUnavailable
from inferscale_sdk.memory import AsyncMemory, tracing

MARKER = "zanzibar xylophone 8812"
QUESTION = f"Where is the {MARKER}?"


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    def finished():
        found = exporter.get_finished_spans()
        exporter.clear()
        for span in found:
            assert MARKER not in span.to_json(), span.to_json()
        return {span.name: span for span in found}

    return finished


@pytest.fixture
def encoded(memory):
    memory.add([f"My {MARKER} is in the attic", "I like tea"], user_id="alice")
    assert memory.wait_encoded()
    return memory


def test_an_answer_has_three_spans(encoded, spans):
    report = encoded.answer(QUESTION, user_id="alice").report
    found = spans()
    assert found.keys() == {"inferscale.recall", "inferscale.plan", "inferscale.request"}
    recall = found["inferscale.recall"].attributes
    assert recall == {"inferscale.top_k": 20, "inferscale.facts": 2}
    plan = found["inferscale.plan"].attributes
    assert plan["inferscale.prompt_tokens"] == report.prompt_tokens
    assert plan["inferscale.facts"] == 2
    request = found["inferscale.request"].attributes
    assert request["inferscale.injected_tokens"] == report.injected_tokens
    assert request["inferscale.status"] == report.status.value
    assert request["inferscale.stream"] is False
    assert found["inferscale.request"].status.is_ok


def test_spans_are_children_of_the_callers(encoded, spans):
    with tracing._tracer().start_as_current_span("chat") as outer:
        encoded.answer(QUESTION, user_id="alice")
    found = spans()
    for name in ("recall", "plan", "request"):
        assert found[f"inferscale.{name}"].parent.span_id == outer.get_span_context().span_id


async def test_the_async_side_traces_likewise(encoded, spans):
    memory = AsyncMemory.wrap(encoded)
    with tracing._tracer().start_as_current_span("chat") as outer:
        await memory.answer(QUESTION, user_id="alice")
        [_ async for _ in memory.stream(QUESTION, user_id="alice")]
    found = spans()
    assert found["inferscale.request"].attributes["inferscale.stream"] is True
    assert found["inferscale.recall"].parent.span_id == outer.get_span_context().span_id
    assert found["inferscale.request"].parent.span_id == outer.get_span_context().span_id


def test_a_stream_is_one_span_that_ends_with_it(encoded, spans):
    chunks = encoded.stream(QUESTION, user_id="alice")
    spans()
    for _ in chunks:
        pass
    request = spans()["inferscale.request"]
    assert request.attributes["inferscale.ttft_ms"] > 0
    left = encoded.stream(QUESTION, user_id="alice")
    next(left)
    left.close()
    assert "inferscale.request" in spans()


def test_failures_are_marked_without_their_message(encoded, engine, spans):
    engine.faults.unavailable = True
    with pytest.raises(EngineUnavailable):
        encoded.answer(QUESTION, user_id="alice")
    assert not spans()["inferscale.plan"].status.is_ok
    engine.faults.unavailable = False
    plan = encoded.prepare(QUESTION, user_id="alice")
    engine.faults.break_stream_after = 0
    with pytest.raises(EngineError):
        list(encoded.complete_stream(plan, sampling=Sampling(max_tokens=4)))
    request = spans()["inferscale.request"]
    assert request.status.description == request.attributes["error.type"] == "EngineError"
    assert request.events == ()


def test_an_error_that_quotes_the_fact_is_not_quoted(spans):
    with pytest.raises(ValueError, match="zanzibar"), tracing.span("plan"):
        raise ValueError(MARKER)
    assert spans()["inferscale.plan"].attributes["error.type"] == "ValueError"


def test_without_opentelemetry_nothing_happens():
    """As where the extra is not installed."""
    script = """
import sys
sys.modules["opentelemetry"] = None
from inferscale_sdk.memory.tracing import begin, span
with span("plan", facts=1) as tracing:
    tracing.set(x=1)
begun = begin("request")
begun.set(x=1); begun.failed(ValueError()); begun.end()
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


def test_without_a_tracer_of_the_application_nothing_is_recorded(encoded):
    tracing._tracer.cache_clear()
    begun = tracing.begin("request", facts=1)
    assert not begun._span.is_recording()
    assert encoded.answer(QUESTION, user_id="alice").text
