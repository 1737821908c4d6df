"""Whose memory a call may touch. Never everybody's."""

from __future__ import annotations

import threading

from inferscale_sdk.errors import NamespaceError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.types import Namespace

__all__ = ["DEFAULT_USER", "Scoping"]

DEFAULT_USER = "default"
_FEED_PAGE = 1000


class Scoping:
    """Turns the ids of a call into a namespace.

    A call that names no user means the user ``"default"``, as long as nobody else is known: a
    notebook needs no ids. As soon as the store holds facts of another user, or a call has named
    one, leaving the user out is an error, because it would mean everybody.

    Args:
        store: Where other users show.
        multi_user: ``True`` always demands a user, ``False`` never does, ``None`` decides as said.
    """

    def __init__(self, store: FactStore, multi_user: bool | None = None) -> None:
        self._store = store
        self._multi_user = multi_user
        self._lock = threading.Lock()
        self._seen_seq: int | None = None

    def namespace(
        self, user_id: str | None, agent_id: str | None, run_id: str | None, app_id: str | None
    ) -> Namespace:
        """The owner of what a call stores, and the scope of what it may see.

        Raises:
            NamespaceError: No user is named where one must be, or an id is malformed.
        """
        namespace = Namespace(user_id=user_id, agent_id=agent_id, run_id=run_id, app_id=app_id)
        if user_id is not None:
            if user_id != DEFAULT_USER and self._multi_user is None:
                self._multi_user = True
            return namespace
        if self._multi_user is None and self._others_exist():
            self._multi_user = True
        if self._multi_user:
            raise NamespaceError(
                "no user_id was given, but this memory serves several users and a call without "
                "one would mean all of them; pass user_id=…, or build Memory(multi_user=False) "
                f"to let calls without one mean the user {DEFAULT_USER!r}"
            )
        return Namespace(user_id=DEFAULT_USER, agent_id=agent_id, run_id=run_id, app_id=app_id)

    def _others_exist(self) -> bool:
        """Whether the store knows another user; reads only what is new since the last call."""
        with self._lock:
            if self._seen_seq is None:
                seq = self._store.last_seq()
                if any(_is_other(namespace) for namespace in self._store.namespaces()):
                    return True
                self._seen_seq = seq
            while self._seen_seq < self._store.last_seq():
                events = self._store.changes(self._seen_seq, _FEED_PAGE)
                if not events:
                    return False
                if any(_is_other(event.namespace) for event in events):
                    return True
                self._seen_seq = events[-1].seq
            return False


def _is_other(namespace: Namespace) -> bool:
    return namespace.user_id not in (None, DEFAULT_USER)
