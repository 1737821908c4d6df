"""What is compared: ways to give a model the same facts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferscale_sdk.bench.quality.material import ArrivalRelatives, Material
from inferscale_sdk.bench.quality.windows import BehindSummary, ReadTwice
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.ingest.default import default_window
from inferscale_sdk.ingest.mean import MeanOfWindows
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.relatives import Relatives
from inferscale_sdk.ingest.turns import RelatedTurns
from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy
from inferscale_sdk.prompt.order import FactOrder

__all__ = ["BASE_ARMS", "PAPER_ARMS", "Arm", "parse_arm"]

Kind: TypeAlias = Literal["prompt", "other", "none", "injected"]

BASE_ARMS = ("prompt", "again", "other", "none")
"""The full prompt, the same computed in other chunks, another memory, no memory at all."""
PAPER_ARMS = ("w0", "w20", "w50")
AGAIN_CHUNK = 96

# Numbers of facts, to 999,999.
_WINDOW = re.compile(r"w(\d{1,6})")
_RELATED = re.compile(r"related(\d{1,6})(?:\+(\d{1,6}))?(?:x(\d{1,6}))?")
_BOTH = re.compile(r"related(\d{1,6})w(\d{1,6})(?:x(\d{1,6}))?")
_NUMBERED = re.compile(r"(live|top)(\d{1,6})")
_ORDERS: dict[str, FactOrder] = {"time": "time", "session": "session", "first": "best-first"}


@dataclass(frozen=True)
class Arm:
    """One way to give a model its memory.

    Args:
        name: As asked for, see :func:`parse_arm`.
        kind: Text, text of other facts, nothing, or injected.
        window: Makes the window strategy of an injected arm.
        order: Of the facts in the prompt.
        live: So many of the best facts stay text behind the injected ones; ``None`` as the product
            does it.
        top: Only so many of the best facts are given; 0 for all.
        header: Encode behind the serving prompt's own beginning.
        arrival: Which relatives a fact may have: ``""`` for all, ``arrival`` for those stored
            before it, ``batch`` for those up to its session.
        twice: Each request has its facts twice, and the second reading is kept.
        summary: The summary of a fact's session stands in front of its window.
    """

    name: str
    kind: Kind
    window: WindowStrategy | None = None
    order: FactOrder = "best-last"
    live: int | None = 0
    top: int = 0
    header: bool = True
    arrival: str = ""
    twice: bool = False
    summary: bool = False

    @property
    def spec(self) -> str:
        """What the arm does, whatever it is called: results are kept under it."""
        window = "" if self.window is None else self.window.name
        parts = (self.kind, window, self.order, self.live, self.top, self.header, self.arrival)
        chunk = AGAIN_CHUNK if self.name == "again" else 0
        return "/".join(map(str, (*parts, chunk))) + self._extras

    @property
    def encoding(self) -> str:
        """What the KV of an injected arm depends on: arms with the same share it."""
        window = "" if self.window is None else self.window.name
        return f"{window}/{self.header}/{self.arrival}{self._extras}"

    @property
    def _extras(self) -> str:
        return ("/twice" if self.twice else "") + ("/summary" if self.summary else "")

    @property
    def chunk(self) -> int | None:
        """Tokens computed at once, where that is the point."""
        return AGAIN_CHUNK if self.name == "again" else None

    def strategy(self, material: Material) -> WindowStrategy:
        """The window strategy over a conversation's facts."""
        assert self.window is not None
        relatives: Relatives = material.relatives
        if self.arrival:
            relatives = ArrivalRelatives(material, same_session=self.arrival == "batch")
        bound = self.window.bound(relatives)
        if self.summary:
            bound = _in_each(bound, lambda strategy: BehindSummary(strategy, material.summaries))
        return _in_each(bound, ReadTwice) if self.twice else bound


def _in_each(
    strategy: WindowStrategy, change: Callable[[WindowStrategy], WindowStrategy]
) -> WindowStrategy:
    """The strategy changed, in both readings where it has two."""
    if isinstance(strategy, MeanOfWindows):
        return MeanOfWindows(change(strategy.first_reading), change(strategy.second_reading))
    return change(strategy)


def parse_arm(name: str) -> Arm:
    """The arm of that name.

    ``prompt``, ``again``, ``other``, ``none``; ``default`` for what the product does; ``w20`` for
    the 20 facts before; ``related5`` for the 5 nearest, ``related5+3`` for those behind the 3
    before, ``related5x4`` in groups of four; ``related10w10`` for
    10 related facts and then the 10 before; ``w20,related5`` for the mean of two readings.

    After slashes: ``bare`` (encoded without the serving header), ``live3`` (best 3 as text;
    ``default`` leaves the best one unless told otherwise), ``top5`` (only the best 5), ``time``,
    ``session`` or ``first`` (order of the facts; best last otherwise), ``twice`` (each fact read
    twice, the second reading kept), ``summary`` (the summary of its session in front of a fact's
    window), ``arrival`` or ``batch`` (relatives known when the fact, or its session, came).

    Raises:
        ConfigurationError: There is no such arm.
    """
    base, *options = name.split("/")
    window = _window(base)
    if window is None and base not in BASE_ARMS:
        raise ConfigurationError(
            f"--arm {name!r} is unknown; use default, w20, related5, related5+3, prompt, other or "
            "none, with options such as /bare, /live3, /time and numbers to 999999 "
            "(see docs/quality.md)"
        )
    kind: Kind = "injected"
    if window is None:
        kind = "other" if base == "other" else "none" if base == "none" else "prompt"
    arm = Arm(name=name, kind=kind, window=window, live=None if base == "default" else 0)
    values: dict[str, object] = {}
    for option in options:
        if option in _ORDERS:
            values["order"] = _ORDERS[option]
        elif option in ("arrival", "batch"):
            values["arrival"] = option
        elif option in ("twice", "summary"):
            values[option] = True
        elif option == "bare":
            values["header"] = False
        elif match := _NUMBERED.fullmatch(option):
            values[match[1]] = int(match[2])
        else:
            raise ConfigurationError(f"--arm {name!r}: /{option} is unknown; see docs/quality.md")
    return Arm(**{**vars(arm), **values})


def _window(base: str) -> WindowStrategy | None:
    first, comma, second = base.partition(",")
    if comma:
        windows = _window(first), _window(second)
        if windows[0] is None or windows[1] is None:
            return None
        return MeanOfWindows(windows[0], windows[1])
    if base == "default":
        return default_window()
    for pattern, make in _WINDOWS.items():
        if match := pattern.fullmatch(base):
            return make(*match.groups())
    return None


_WINDOWS: dict[re.Pattern[str], Callable[..., WindowStrategy]] = {
    _WINDOW: lambda w: PrecedingTurns(int(w)),
    _RELATED: lambda related, recent, group: RelatedFacts(
        int(related), recent=int(recent or 0), group=int(group or 1)
    ),
    _BOTH: lambda related, w, group: RelatedTurns(
        int(w), int(related), int(group) if group else None
    ),
}
