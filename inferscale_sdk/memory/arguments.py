"""What a memory is built from, looked at before anything is opened or made."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TypeVar

from inferscale_sdk.errors import ConfigurationError

__all__ = ["check_folder", "check_kind", "check_seconds"]

T = TypeVar("T")

_LONGEST_SHOWN = 80


def check_kind(value: T, kind: type, what: str, way_out: str) -> T:
    """``value`` itself, if it is of a kind.

    Raises:
        ConfigurationError: It is of another; the message names it, and ``way_out``.
    """
    if not isinstance(value, kind):
        raise ConfigurationError(f"{what}={_shown(value)} is no {kind.__name__}; {way_out}")
    return value


def check_seconds(value: float, what: str) -> float:
    """A number of seconds, 0 for never.

    Raises:
        ConfigurationError: It is no number, negative or not finite.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise ConfigurationError(
            f"{what}={_shown(value)} is not a number of seconds; 0 means never"
        )
    return value


def check_folder(path: os.PathLike[str] | str) -> Path:
    """A folder's path, its ``~`` replaced.

    Raises:
        ConfigurationError: No folder can have it.
    """
    way_out = "give the path of a folder, or leave it out for the one under INFERSCALE_HOME"
    possible = isinstance(path, str | os.PathLike)
    try:
        text = os.fspath(path) if possible else ""
        if isinstance(text, str) and text.strip() and "\0" not in text:
            return Path(text).expanduser()
    except RuntimeError:
        way_out = "whose home that is, is not known; write the folder out"
    raise ConfigurationError(f"path={_shown(path)} is no folder; {way_out}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
