"""The contract of a remote store: bytes by name, on another machine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["ObjectStore", "StoredObject", "safe_url"]

_USER = re.compile(r"//.*@")  # up to the last one: a password may hold anything
_QUERY = re.compile(r"[?#]\S*")


def safe_url(url: str) -> str:
    """An address without user, password and parameters, fit for logs."""
    return _QUERY.sub("?…", _USER.sub("//…@", url))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it.

    Args:
        name: Its name.
        nbytes: Its size.
        used_at: When it was written or last used, seconds since 1970; 0 if nobody knows.
    """

    name: str
    nbytes: int
    used_at: float = 0.0


class ObjectStore(ABC):
    """Bytes by name. Names are paths of ASCII letters, digits, ``.``, ``-`` and ``/``.

    Methods are called from several threads at once, and may raise anything: who calls them takes
    every exception for a store that does not work at the moment. They set limits of their own to
    single waits where they can; the caller gives up on the whole after its own limit.
    """

    address: str
    """Where it is, without secrets."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """The whole object, ``None`` if it is not there or its time is up."""

    @abstractmethod
    def head(self, name: str, nbytes: int) -> bytes | None:
        """The object's first bytes."""

    @abstractmethod
    def put(self, name: str, data: bytes, ttl_seconds: float | None) -> int | None:
        """Write an object so that its name stands for all of it or for what was there before.

        Args:
            name: Its name.
            data: Its bytes.
            ttl_seconds: How long it is to be found, ``None`` for ever.

        Returns:
            Size of the object that was replaced, ``None`` if there was none.
        """

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The object's size, ``None`` if it is not there."""

    @abstractmethod
    def delete(self, name: str) -> int | None:
        """Remove an object; the size it had, ``None`` if it was not there."""

    @abstractmethod
    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose names start with ``prefix``, which ends in ``/``."""

    @abstractmethod
    def shards(self) -> list[str]:
        """The first two parts of all names, ``<model>/r<rank>``, each once."""

    def close(self) -> None:  # noqa: B027 - a store without connections has nothing to release
        """Let go of connections."""
