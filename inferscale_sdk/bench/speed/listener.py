"""Who hears how a measurement gets on, and how long its stages take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Listener", "Stages"]


class Listener(Protocol):
    """Hears how a measurement gets on."""

    def stage(self, what: str) -> AbstractContextManager[None]:
        """Something that takes a while begins; it ends with the context."""

    def progress(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """The same with a known end; the yielded function is told how many are done."""


@dataclass(slots=True)
class Stages:
    """Tells the listener what is going on, and keeps the time.

    Args:
        listener: Who is told.
        seconds: How long each stage took, by name.
    """

    listener: Listener
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """A stage without a known end."""
        with self._timed(name), self.listener.stage(what):
            yield

    @contextmanager
    def progress(self, name: str, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage of ``total`` steps; yields what is told how many are done."""
        with self._timed(name), self.listener.progress(what, total) as tell:
            yield tell

    @contextmanager
    def steps(self, name: str, what: str, total: int) -> Iterator[Callable[[], None]]:
        """A stage of ``total`` steps; yields what is called after each."""
        done = 0
        with self.progress(name, what, total) as tell:

            def step() -> None:
                nonlocal done
                done += 1
                tell(done)

            yield step

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
