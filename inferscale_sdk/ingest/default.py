"""The window strategy that is used where nobody says otherwise."""

from __future__ import annotations

from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.windows import WindowStrategy

__all__ = ["default_window"]


def default_window() -> WindowStrategy:
    """Five related facts, up to four behind them at a time, to be bound to the memory's own index.

    Why these: docs/quality.md.
    """
    return RelatedFacts(5, group=4)
