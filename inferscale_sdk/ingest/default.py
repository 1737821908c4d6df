"""The window strategy that is used where nobody says otherwise."""

from __future__ import annotations

from inferscale_sdk.ingest.mean import MeanOfWindows
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy

__all__ = ["default_window"]


def default_window() -> WindowStrategy:
    """Behind the twenty before, and again behind five related facts; to be bound to an index.

    Why these: docs/quality.md.
    """
    return MeanOfWindows(PrecedingTurns(20), RelatedFacts(5, group=4))
