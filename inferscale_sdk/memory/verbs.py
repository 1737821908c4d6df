"""What all verbs share: the parts, and the rule of namespaces."""

from __future__ import annotations

from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.memory.assembly import Assembly
from inferscale_sdk.types import Namespace

__all__ = ["DEFAULT_TOP_K", "Verbs"]

DEFAULT_TOP_K = 20


class Verbs:
    """Base of the groups of verbs.

    Every verb takes ``user_id``, ``agent_id``, ``run_id`` and ``app_id``. What is stored belongs
    to exactly the ids given; what is looked for belongs at least to them.
    """

    _parts: Assembly
    _max_fact_chars: int
    _max_facts: int | None

    @property
    def store(self) -> FactStore:
        """The store of facts."""
        return self._parts.store

    def _namespace(
        self, user_id: str | None, agent_id: str | None, run_id: str | None, app_id: str | None
    ) -> Namespace:
        return self._parts.scoping.namespace(user_id, agent_id, run_id, app_id)
