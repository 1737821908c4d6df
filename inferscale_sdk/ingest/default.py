"""The window strategy that is used where nobody says otherwise."""

from __future__ import annotations

from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy

__all__ = ["default_window"]


def default_window() -> WindowStrategy:
    """The default, to be bound to the memory's own index."""
    return PrecedingTurns()
