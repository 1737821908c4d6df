"""Whose memory a call is about, when several places may say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from inferscale_sdk.errors import NamespaceError

__all__ = ["ID_NAMES", "Ids", "merge_ids", "object_ids"]

Ids: TypeAlias = dict[str, Any]
"""Some of ``user_id``, ``agent_id``, ``run_id``, ``app_id``: strings, to be passed on to verbs."""

ID_NAMES = ("user_id", "agent_id", "run_id", "app_id")


def merge_ids(*sources: Mapping[str, Any] | None) -> Ids:
    """The ids of all sources together.

    Raises:
        NamespaceError: Two sources name different ids of one kind. Which of them is meant cannot
            be known, and a wrong guess would show one user another's memory.
    """
    merged: Ids = {}
    for source in sources:
        for name in ID_NAMES:
            value = (source or {}).get(name)
            if value is None:
                continue
            if merged.setdefault(name, value) != value:
                raise NamespaceError(
                    f"{name} is {merged[name]!r} in one place and {value!r} in another; leave it "
                    "out of the constructor to serve several, or name the same one"
                )
    return merged


def object_ids(owner: object) -> Ids:
    """The ids in an object's attributes or, if it is a mapping, under its keys.

    Raises:
        NamespaceError: An attribute is there and not a string. Leaving it out would put the call
            under another user, or under none.
    """
    if isinstance(owner, Mapping):
        return {name: owner[name] for name in ID_NAMES if owner.get(name) is not None}
    found: Ids = {}
    for name in ID_NAMES:
        value = getattr(owner, name, None)
        if value is None:
            continue
        if not isinstance(value, str):
            raise NamespaceError(
                f"{name} of the {type(owner).__name__} is {value!r}, a {type(value).__name__}; "
                f"ids are strings: use {name}=str(...)"
            )
        found[name] = value
    return found
