"""The verbs that change what is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.memory.extraction import Extractor, engine_extractor
from inferscale_sdk.memory.remembering import new_facts, without_handles
from inferscale_sdk.memory.turns import MessagesLike
from inferscale_sdk.memory.verbs import Verbs
from inferscale_sdk.prompt.handles import strip_handles
from inferscale_sdk.types import Fact, Namespace, NewFact

__all__ = ["WriteVerbs", "every_owner"]

_FEED_PAGE = 1000


class WriteVerbs(Verbs):
    """Remembering, changing and forgetting."""

    def add(
        self,
        messages: MessagesLike,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        infer: bool = False,
        extractor: Extractor | None = None,
        timestamp: datetime | None = None,
        conversation_id: str | None = None,
    ) -> list[Fact]:
        """Remember messages: one fact per turn, in order. Returns at once; no model is called.

        Indexing and encoding follow in the background; until a fact is encoded it is served as
        prompt text. System messages and empty turns are not remembered. A turn longer than the
        memory's ``max_fact_chars`` becomes several facts, cut at the ends of sentences.

        Args:
            messages: A statement, a message ``{"role": …, "content": …}``, or a list of them.
            user_id: Whose memory.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.
            metadata: JSON values kept with every fact, for filters.
            infer: Have the engine's model list the facts in the messages (a model call). If that
                fails the messages themselves are stored.
            extractor: Lists the facts in place of the engine's model; implies ``infer``.
            timestamp: When it was said; a message's own timestamp goes before.
            conversation_id: Groups what follows one another; by default the session.

        Returns:
            The facts stored; empty if there was nothing to remember.

        Raises:
            NamespaceError: No user where one must be named.
            ConfigurationError: A message or the metadata is malformed (nothing is stored then),
                or ``infer`` was asked for with neither engine nor extractor.
            StoreFull: The user would have more facts than the memory's ``max_facts``; nothing is
                stored then.
        """
        owner = self._namespace(user_id, agent_id, run_id, app_id)
        if infer and extractor is None:
            serving = self._parts.maybe_serving
            if serving is None:
                raise ConfigurationError(
                    "infer=True needs a model to list the facts; give the memory an engine, or "
                    "pass extractor=…"
                )
            # The planner may have to load a tokenizer first: that, too, may fail.
            extractor = lambda turns: engine_extractor(  # noqa: E731
                serving.engine, serving.planner(), owner
            )(turns)
        facts = new_facts(
            messages,
            max_chars=self._max_fact_chars,
            conversation_id=conversation_id if conversation_id is not None else (run_id or ""),
            metadata=metadata,
            timestamp=timestamp,
            extractor=extractor,
        )
        if not facts:
            return []
        stored = self._parts.store.add(facts, owner, max_facts=self._max_facts)
        self._parts.changed(owner)
        return stored

    def add_facts(
        self,
        facts: Sequence[NewFact],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> list[Fact]:
        """Remember facts as they are given: nothing is cut, joined or left out.

        For adapters and imports that have facts already; :meth:`add` makes them from messages.

        Args:
            facts: What to store, in order; handles in texts and speakers are taken out.
            user_id: Whose memory.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.

        Raises:
            NamespaceError: No user where one must be named.
            ConfigurationError: A text is blank or too long, or metadata is not JSON; nothing is
                stored then.
            StoreFull: As for :meth:`add`.
        """
        owner = self._namespace(user_id, agent_id, run_id, app_id)
        if not facts:
            return []
        clean = [without_handles(fact) for fact in facts]
        stored = self._parts.store.add(clean, owner, max_facts=self._max_facts)
        self._parts.changed(owner)
        return stored

    def update(
        self,
        fact_id: str,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        timestamp: datetime | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> Fact:
        """Change a fact; what is ``None`` stays. Takes effect on the next request everywhere.

        KV made from the old text, its own and that of facts encoded behind it, is dropped and
        made again.

        Args:
            fact_id: Which.
            text: The new text.
            metadata: The new metadata, in place of the old.
            timestamp: When it happened.
            user_id: Whose memory.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.

        Raises:
            NotFoundError: No such fact in this namespace, or it is deleted.
            ConfigurationError: The text is blank or too long, or the metadata is not JSON.
        """
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        fact = self._parts.store.update(
            fact_id,
            scope,
            text=None if text is None else strip_handles(text),
            metadata=metadata,
            event_time=timestamp,
        )
        self._parts.changed(scope, forget=True)
        return fact

    def delete(
        self,
        fact_id: str,
        *,
        hard: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> Fact:
        """Forget a fact: text, vector and KV, and KV that was made behind it.

        Args:
            fact_id: Which.
            hard: Erase the text from history, too.
            user_id: Whose memory.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.

        Returns:
            The fact as it was.

        Raises:
            NotFoundError: No such fact in this namespace, or it is deleted already.
        """
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        fact = self._parts.store.delete(fact_id, scope, hard=hard)
        self._parts.recaller.forget([fact.id])
        self._parts.changed(scope, forget=True)
        return fact

    def delete_all(
        self,
        *,
        hard: bool = False,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> int:
        """Forget every fact of a namespace; returns how many there were."""
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        gone = self._parts.store.delete_all(scope, hard=hard)
        self._parts.recaller.forget([fact.id for fact in gone])
        self._parts.changed(scope, forget=True)
        return len(gone)

    def reset(self, *, confirm: bool = False) -> int:
        """Erase everything of everybody, history included; returns how many facts were erased.

        Raises:
            ConfigurationError: ``confirm`` is not ``True``.
        """
        if confirm is not True:
            raise ConfigurationError(
                "reset erases the memory of every user and cannot be undone; pass confirm=True, "
                "or use delete_all(user_id=…) for one user"
            )
        store = self._parts.store
        erased = 0
        for owner in every_owner(store):
            for fact in store.find(owner, include_deleted=True):
                store.delete(fact.id, owner, hard=True)
                erased += 1
            self._parts.changed(owner)
        self._parts.recaller.forget_everything()
        serving = self._parts.maybe_serving
        if serving is not None:
            serving.forget_promptly()
        return erased


def every_owner(store: FactStore) -> list[Namespace]:
    """Every owner there ever was, those with nothing but deleted facts included."""
    owners = dict.fromkeys(store.namespaces())
    seq = 0
    while events := store.changes(seq, _FEED_PAGE):
        owners.update(dict.fromkeys(event.namespace for event in events))
        seq = events[-1].seq
    return list(owners)
