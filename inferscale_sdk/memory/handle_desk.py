"""Handles out, facts in: honours only what this store minted for the caller's namespace."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.prompt.handles import HandleMatch, HandleMinter
from inferscale_sdk.types import Fact, FactHandle, Namespace

__all__ = ["HandleDesk", "HandlesLike"]

log = logging.getLogger(__name__)

HandlesLike: TypeAlias = "str | FactHandle | Sequence[str | FactHandle]"


class HandleDesk:
    """Mints and resolves handles, and counts both kinds of outcome.

    Args:
        store: Whose facts.
        minter: Signs and checks.
    """

    def __init__(self, store: FactStore, minter: HandleMinter) -> None:
        self._store = store
        self._minter = minter
        self._lock = threading.Lock()
        self.resolved = 0
        self.inert = 0

    def mint(self, facts: Iterable[Fact]) -> list[FactHandle]:
        """A handle for each fact, in order.

        Raises:
            ConfigurationError: Something else than a fact is among them.
        """
        given = list(facts)
        for fact in given:
            if not isinstance(fact, Fact):
                raise ConfigurationError(
                    f"{fact!r} is not a fact; give what get, get_all or search return"
                )
        return [self._minter.mint(fact) for fact in given]

    def resolve(self, handles: HandlesLike, scope: Namespace) -> list[Fact]:
        """The facts that ``handles`` stand for, each once, in the order of their first mention.

        Args:
            handles: Handles, markers, or texts that may hold any number of markers.
            scope: The caller's namespace.

        Returns:
            Facts of genuine handles. One that is unknown, forged, of another namespace, or of
            another text than the current one stays inert: it is counted and left out. A change of
            metadata or time alone leaves a handle as it is.
        """
        matches = self._matches(handles)
        facts = {f.id: f for f in self._store.get_many(list({m.fact_id for m in matches}), scope)}
        found: dict[str, Fact] = {}
        inert = 0
        for match in matches:
            fact = facts.get(match.fact_id)
            if fact is not None and self._is_genuine(match, fact):
                found[fact.id] = fact
            else:
                inert += 1
        with self._lock:
            self.resolved += len(found)
            self.inert += inert
        if inert:
            log.info("%d of %d fact handles were left inert", inert, len(matches))
        return list(found.values())

    def _is_genuine(self, match: HandleMatch, fact: Fact) -> bool:
        """Whether the handle was minted for this fact with the text that it has now.

        The signature covers version and text; every update counts the version up, but only one of
        the text makes the handle stand for something else.
        """
        if match.version > fact.version:
            return False
        return self._minter.verify(match.marker, replace(fact, version=match.version))

    def _matches(self, handles: HandlesLike) -> list[HandleMatch]:
        items = [handles] if isinstance(handles, str | FactHandle) else handles
        unique = {match.marker: match for item in items for match in self._minter.find(str(item))}
        return list(unique.values())
