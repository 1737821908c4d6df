"""Values that options take: numbers within a range, addresses, folders. Each error names them.

Every ``typer.Option`` with a number, an address or a folder takes its ``parser`` from here, so
that what cannot be used is wrong usage (code 2) before anything is done.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from inferscale_sdk.errors import ConfigurationError, NamespaceError
from inferscale_sdk.facts.base import FACTS_FILE

__all__ = [
    "COUNT",
    "LONG_COUNT",
    "MODEL_TO_LOAD",
    "OWNER_ID",
    "existing_folder",
    "existing_memory",
    "folder_to_make",
    "http_address",
    "integers",
    "number",
    "remote_address",
    "remote_address_in",
    "whole",
]

LONG_COUNT = 1_000_000_000
COUNT = 1_000_000

_LONGEST_SHOWN = 80
_REMOTE_SCHEME = re.compile(r"[a-z][a-z0-9+._-]*(::[a-z][a-z0-9+._-]*)*", re.IGNORECASE)


def whole(least: int, most: int) -> dict[str, Any]:
    """What ``typer.Option`` needs for whole numbers from ``least`` to ``most``."""
    span = f"{least:,} to {most:,}"

    def parse(text: Any) -> int:
        return _whole(text, least, most)

    return {"parser": parse, "metavar": span}


def number(least: float, most: float) -> dict[str, Any]:
    """What ``typer.Option`` needs for numbers from ``least`` to ``most``; never NaN."""
    span = f"{least:,} to {most:,}"

    def parse(text: Any) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise typer.BadParameter(f"{_shown(text)} is not a number from {span}")
        return value

    return {"parser": parse, "metavar": span}


def integers(text: str, option: str, least: int, most: int) -> tuple[int, ...]:
    """Whole numbers from a list with commas, given as ``option``."""
    try:
        return tuple(_whole(part, least, most) for part in text.split(","))
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{error.message}; give them with commas between, e.g. 5,50", param_hint=f"'{option}'"
        ) from None


def http_address(text: str) -> str:
    """The address of a running server."""
    from inferscale_sdk.engines.http import check_address

    return _usage(lambda: check_address(text))


def remote_address(text: str) -> str:
    """The address of a remote tier, as an option gives it."""
    return _usage(lambda: remote_address_in("the address", text))


def remote_address_in(name: str, text: str) -> str:
    """The address of a remote tier, as ``name`` gives it. Errors never show its password.

    Raises:
        ConfigurationError: It cannot be one.
    """
    from urllib.parse import urlsplit

    from inferscale_sdk.tiers.remote_base import safe_url

    scheme, _, rest = text.partition("://")
    try:
        # A password may hold anything, also what ends a host: only what follows it is looked at.
        urlsplit(f"{scheme}://{rest.rpartition('@')[2]}").port  # noqa: B018 - raises
        possible = bool(rest and _REMOTE_SCHEME.fullmatch(scheme))
    except ValueError:
        possible = False
    if not possible:
        raise ConfigurationError(
            f"{name} {safe_url(text)!r} is none of a remote tier; give one like "
            "redis://host:6379/0, valkey://host:6379/0, s3://bucket/kv or file:///mnt/kv"
        )
    return text


def folder_to_make(text: Any) -> Path:
    """A folder that is there or can be made."""
    path = _path(text)
    try:
        there = next((above for above in (path, *path.parents) if above.exists()), None)
    except OSError as error:
        raise typer.BadParameter(
            f"{_shown(str(path))} cannot be used ({error.strerror}); give another folder"
        ) from None
    if there is not None and not there.is_dir():
        raise typer.BadParameter(f"{str(there)!r} is a file; give a folder, or a new name for one")
    return path


def existing_folder(text: Any) -> Path:
    """A folder that is there."""
    path = _path(text)
    if _holds(path.is_dir):
        return path
    what = "is a file, no folder" if _holds(path.exists) else "does not exist"
    raise typer.BadParameter(f"{str(path)!r} {what}; give a folder that is there")


def model_to_load(text: Any) -> str:
    """``bundled``, a folder that is there, or a name to be looked up elsewhere."""
    name = str(text)
    like_a_path = name.startswith((".", "~", os.sep)) or name.endswith(os.sep)
    there = like_a_path and _holds(Path(name).expanduser().exists)
    if name.strip() and (there or not like_a_path):
        return name
    raise typer.BadParameter(
        f"{_shown(name)} does not exist; give a model's folder, a name that a model hub knows, or "
        "bundled"
    )


MODEL_TO_LOAD: dict[str, Any] = {"parser": model_to_load, "metavar": "MODEL"}
"""What ``typer.Option`` and ``typer.Argument`` need for a model."""


def owner_id(text: Any) -> str:
    """The id of a user, an agent, a session or an application."""
    from inferscale_sdk.sqlite.clauses import check_owner
    from inferscale_sdk.types import Namespace

    try:
        check_owner(Namespace(user_id=str(text)), "it")
    except NamespaceError as error:
        raise typer.BadParameter(str(error).replace("user_id", "it", 1)) from None
    return str(text)


OWNER_ID: dict[str, Any] = {"parser": owner_id, "metavar": "TEXT"}
"""What ``typer.Option`` needs for an id."""


def existing_memory(text: Any) -> Path:
    """A folder in which a memory lies."""
    path = existing_folder(text)
    if not _holds((path / FACTS_FILE).is_file):
        raise typer.BadParameter(
            f"there is no memory in {str(path)!r} (no {FACTS_FILE}); name the folder of one, "
            "or make one with 'inferscale memory add'"
        )
    return path


def _whole(text: Any, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise typer.BadParameter(f"{_shown(text)} is not a whole number from {least:,} to {most:,}")
    return value


def _path(text: Any) -> Path:
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give a folder, or leave the option out")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise typer.BadParameter(
            f"{str(text)!r} names a home that is not known; write the folder out"
        ) from None


def _holds(question: Callable[[], bool]) -> bool:
    """What may not be looked into, or has an impossible name, is not there for us."""
    try:
        return question()
    except OSError:
        return False


def _usage(check: Callable[[], str]) -> str:
    try:
        return check()
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def _shown(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
