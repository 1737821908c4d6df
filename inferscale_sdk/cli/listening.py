"""How long work shows on stderr."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from inferscale_sdk.cli.output import progress_bar, working

__all__ = ["Progress"]


class Progress:
    """Shows stages as they come."""

    def stage(self, what: str) -> AbstractContextManager[None]:
        """Something without a known end."""
        return working(what)

    def progress(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Something of ``total`` steps."""
        return progress_bar(what, total)
