"""The verbs that look: search, listing, history, handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from inferscale_sdk.memory.handle_desk import HandlesLike
from inferscale_sdk.memory.verbs import DEFAULT_TOP_K, Verbs
from inferscale_sdk.prompt.handles import strip_handles
from inferscale_sdk.recall.base import RecallQuery
from inferscale_sdk.types import Fact, FactEvent, FactHandle, ScoredFact

__all__ = ["FindVerbs"]


class FindVerbs(Verbs):
    """Finding facts. None of these changes anything."""

    def search(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ScoredFact]:
        """The facts that matter for ``query``, best first; none for a blank query.

        Args:
            query: A question or any text.
            top_k: How many at most.
            user_id: Whose memory.
            agent_id: Only what this agent was told.
            run_id: Only this session.
            app_id: Only this application.
            filters: Metadata conditions, ``{"topic": "food"}`` or ``{"year": {"gte": 2020}}``.
            threshold: Least cosine similarity.
            since: Happened at or after.
            until: Happened before.

        Raises:
            NamespaceError: No user where one must be named.
            ConfigurationError: ``top_k``, a filter or the threshold cannot be used.
        """
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        return self._parts.recaller.search(
            RecallQuery(
                text=strip_handles(query),
                scope=scope,
                top_k=top_k,
                filters=filters,
                since=since,
                until=until,
                threshold=threshold,
            )
        )

    def get(
        self,
        fact_id: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> Fact:
        """One fact.

        Raises:
            NotFoundError: No such fact in this namespace, or it is deleted.
        """
        return self._parts.store.get(fact_id, self._namespace(user_id, agent_id, run_id, app_id))

    def get_all(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        conversation_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Fact]:
        """All facts of a namespace that meet the conditions, oldest first."""
        return self._parts.store.find(
            self._namespace(user_id, agent_id, run_id, app_id),
            filters=filters,
            conversation_id=conversation_id,
            since=since,
            until=until,
            limit=limit,
            offset=offset,
        )

    def count(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> int:
        """How many facts a namespace has."""
        return self._parts.store.count(self._namespace(user_id, agent_id, run_id, app_id))

    def history(
        self,
        fact_id: str,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> list[FactEvent]:
        """What happened to a fact, oldest first; works on deleted facts.

        Raises:
            NotFoundError: The namespace never held such a fact.
        """
        return self._parts.store.history(
            fact_id, self._namespace(user_id, agent_id, run_id, app_id)
        )

    # -- handles ---------------------------------------------------------------------------

    def handles(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[FactHandle]:
        """Handles of the facts that :meth:`search` finds, best first."""
        found = self.search(
            query,
            top_k=top_k,
            user_id=user_id,
            agent_id=agent_id,
            run_id=run_id,
            app_id=app_id,
            filters=filters,
            threshold=threshold,
            since=since,
            until=until,
        )
        return self._parts.desk.mint(scored.fact for scored in found)

    def mint(self, facts: Sequence[Fact | ScoredFact]) -> list[FactHandle]:
        """Handles of facts at hand, in their order."""
        return self._parts.desk.mint(f.fact if isinstance(f, ScoredFact) else f for f in facts)

    def resolve(
        self,
        handles: HandlesLike,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> list[Fact]:
        """The facts that handles stand for, each once, in the order of first mention.

        Args:
            handles: Handles, markers, or any text with markers in it.
            user_id: Whose memory.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.

        Returns:
            Facts of genuine handles only. Others are left out and counted in :meth:`stats`.
        """
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        return self._parts.desk.resolve(handles, scope)
