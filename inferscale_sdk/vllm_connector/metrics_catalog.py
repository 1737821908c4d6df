"""The connector's metrics as they stand on ``/metrics``: names, labels, meaning.

Every name starts with ``inferscale:``; Prometheus appends ``_total`` to counters. vLLM adds its own
labels ``model_name`` and ``engine``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "PREFIX", "TIER_COUNTERS", "TIER_GAUGES", "Metric"]

PREFIX = "inferscale:"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        kind: Counter or gauge.
        help: What it counts.
        label: The label it has besides vLLM's own, if any.
    """

    kind: Literal["counter", "gauge"]
    help: str
    label: Literal["reason", "result", "tier"] | None = None


def _counter(help_: str, label: Literal["reason", "result", "tier"] | None = None) -> Metric:
    return Metric("counter", help_, label)


TIER_COUNTERS = {
    "hits": "Segments looked for and found.",
    "misses": "Segments looked for in vain.",
    "puts": "Segments stored.",
    "evictions": "Segments dropped to make room.",
    "deletions": "Segments dropped on demand.",
    "quarantined": "Stored segments that failed their checks and were set aside.",
    "errors": "Other failed reads and writes.",
    "read_bytes": "Bytes read.",
    "write_bytes": "Bytes written.",
    "read_seconds": "Seconds spent reading.",
    "write_seconds": "Seconds spent writing.",
}
"""Fields of a tier's figures that only grow, and what they count."""

TIER_GAUGES = {
    "segments": "Segments in the tier.",
    "used_bytes": "Bytes in the tier.",
    "pinned_bytes": "Bytes protected from eviction by requests under way.",
    "capacity_bytes": "The tier's budget; absent without a limit.",
}
"""Fields of a tier's figures that go up and down."""

METRICS: dict[str, Metric] = {
    "injections": _counter(
        "Requests that asked for injection: with some tokens injected, or as text.", "result"
    ),
    "shortfalls": _counter("Injections that were not whole, by reason.", "reason"),
    "refusals": _counter("Operations refused before anything was looked up, by reason.", "reason"),
    "verified_tokens": _counter("Prompt tokens that equal those of the segments named for them."),
    "verified_segments": _counter("Segments whose tokens equal the prompt's at their place."),
    "claimed_tokens": _counter("Prompt tokens that vLLM was told need no prefill."),
    "claimed_segments": _counter("Segments with claimed tokens."),
    "loaded_tokens": _counter("Prompt tokens written into the cache from stored KV."),
    "loaded_segments": _counter("Segments written into the cache, whole or in part."),
    "loaded_bytes": _counter("Bytes of KV written into the cache, over all ranks."),
    "load_seconds": _counter("Seconds the workers spent turning and writing segments."),
    "failed_loads": _counter("Loads that failed; the tokens were computed instead."),
    "captured_segments": _counter("Spans stored by encode requests."),
    "captured_bytes": _counter("Bytes of KV captured, over all ranks."),
    "failed_captures": _counter("Spans of encode requests that were not stored."),
    "learned_preambles": _counter("Preambles captured on the way of an answer."),
    "forgotten_segments": _counter(
        "Segments dropped because clients told this server or another one on its folder."
    ),
    **{f"tier_{name}": _counter(text, "tier") for name, text in TIER_COUNTERS.items()},
    **{f"tier_{name}": Metric("gauge", text, "tier") for name, text in TIER_GAUGES.items()},
}
"""By name without the prefix."""
