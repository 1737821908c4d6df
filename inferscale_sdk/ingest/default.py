"""The window strategy that is used where nobody says otherwise."""

from __future__ import annotations

from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.windows import WindowStrategy

__all__ = ["default_window"]


def default_window() -> WindowStrategy:
    """The three nearest facts, to be bound to the memory's own index; see docs/quality.md."""
    return RelatedFacts()
