"""Every path through LlamaIndex on the real server: its counters show what was injected.

Each test goes its path twice, with other facts the second time: in the first the server learns the
text that stands before the facts, in the second nothing can come from vLLM's own cache but that.
"""

from __future__ import annotations

from typing import Any

import pytest

from inferscale_sdk import InjectionReport, InjectionStatus

MARKS = [
    pytest.mark.engine,
    # llama-index-core 0.14 on pydantic 2.14, in every agent.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step"),
]

FACTS = {
    "first": [
        "My cat is called Biscuit and she is fourteen years old.",
        "I inspect bridges for a living, mostly old steel ones.",
        "I am allergic to walnuts, so I always read the label.",
    ],
    "second": [
        "My other cat is called Crumb and is three years old.",
        "My sister Ingrid lives in Bergen with two children.",
        "On Sundays I bake bread with far too much rye in it.",
    ],
}
ASK = "What is my cat called?"
AGAIN = "I forgot, how old is my cat?"


class Seen:
    """What the model reported, and what the server counted."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.reports: list[InjectionReport] = []
        self.part = "first"
        self._recalling: list[Any] = []
        self._before = self._count()

    def follow(self, recalling: Any) -> Any:
        """Have ``recalling`` recall the facts of the current pass."""
        recalling.filters = {"part": self.part}
        self._recalling.append(recalling)
        return recalling

    def _count(self) -> int:
        return self._engine.stats().counters.get("loaded_tokens", 0)

    def second_pass(self) -> None:
        """Look at what comes from here on, with the other facts."""
        self.part = "second"
        for recalling in self._recalling:
            recalling.filters = {"part": self.part}
        self.reports.clear()
        self._before = self._count()

    def facts(self) -> list[int]:
        """How many facts each request had."""
        return [len(report.fact_ids) for report in self.reports]

    def assert_injected(self, facts: list[int]) -> None:
        """Each request had so many facts, and none of them was computed from text."""
        assert self.facts() == facts, self.reports
        for report in self.reports:
            if report.fact_ids:
                assert report.status is InjectionStatus.INJECTED, report
                assert report.injected_tokens + report.cached_tokens > report.memory_tokens, report
        injected = sum(report.injected_tokens for report in self.reports)
        assert injected > 0
        assert self._count() - self._before > 0
