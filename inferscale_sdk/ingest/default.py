"""The window strategy that is used where nobody says otherwise."""

from __future__ import annotations

from inferscale_sdk.ingest.turns import RelatedTurns
from inferscale_sdk.ingest.windows import WindowStrategy

__all__ = ["default_window"]


def default_window() -> WindowStrategy:
    """Ten related facts and then the ten before, to be bound to the memory's own index.

    Why these: docs/quality.md.
    """
    return RelatedTurns(w=10, related=10)
