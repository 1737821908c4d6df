"""The verbs that need an engine: plan a prompt with memory, and answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from inferscale_sdk.engines.base import Completion, CompletionChunk, Sampling
from inferscale_sdk.memory.turns import ChatMessage, MessagesLike, as_chat, last_user_text
from inferscale_sdk.memory.values import Answer, PlanRequest, PreparedPlan
from inferscale_sdk.memory.verbs import Verbs
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.prompt.strings import require_strings
from inferscale_sdk.recall.base import RecallQuery
from inferscale_sdk.types import Fact, FactHandle, InjectionReport, Namespace, ScoredFact

__all__ = ["AnswerVerbs", "FactsLike", "as_answer"]

FactsLike: TypeAlias = "Sequence[ScoredFact | Fact | FactHandle | str]"


class AnswerVerbs(Verbs):
    """Prompts and answers."""

    _top_k: int

    def prepare(
        self,
        messages: MessagesLike,
        *,
        facts: FactsLike | None = None,
        top_k: int | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        inject: bool = True,
        max_tokens: int = 256,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> PreparedPlan:
        """Recall the facts that matter and plan a prompt with them, the best one last.

        Send the plan with :meth:`complete` or :meth:`complete_stream`. Who sends it otherwise
        calls :meth:`refresh` right before and :meth:`observe` with the report after.

        Args:
            messages: The conversation, or a question. Handles in it are taken out; resolve them
                first and pass them as ``facts`` if they are to count.
            facts: Facts or handles to use, best first, in place of recall by the user's last
                message. Handles that are not genuine are left out.
            top_k: Facts recalled at most.
            user_id: Whose memory.
            agent_id: Only what this agent was told.
            run_id: Only this session.
            app_id: Only this application.
            filters: Metadata conditions of recall.
            threshold: Least cosine similarity of recall.
            since: Happened at or after.
            until: Happened before.
            inject: Whether stored KV may be used; the prompt's tokens are the same either way.
            max_tokens: Kept free for the answer.
            tools: Tool schemas for the chat template.
            template_kwargs: Further variables of the chat template.

        Raises:
            NamespaceError: No user where one must be named.
            ContextOverflow: The conversation does not fit even without memory.
            ConfigurationError: No engine, or a message is malformed.
            EngineUnavailable: Nobody has answered yet, so that the model is unknown.
        """
        serving = self._parts.serving
        scope = self._namespace(user_id, agent_id, run_id, app_id)
        chat = as_chat(messages)
        require_strings([tools, template_kwargs], "a tool or a variable of the chat template")
        request = PlanRequest(
            messages=tuple(chat),
            scope=scope,
            reserve_tokens=max_tokens,
            inject=inject,
            tools=tuple(tools) if tools is not None else None,
            template_kwargs=dict(template_kwargs or {}),
        )

        def find_facts() -> list[ScoredFact]:
            if facts is not None:
                return self._given(facts, scope)
            query = RecallQuery(
                text=last_user_text(chat),
                scope=scope,
                top_k=self._top_k if top_k is None else top_k,
                filters=filters,
                since=since,
                until=until,
                threshold=threshold,
            )
            return self._parts.recaller.search(query)

        return serving.preparer.prepare(request, find_facts)

    def _given(self, facts: FactsLike, scope: Namespace) -> list[ScoredFact]:
        """Facts handed in, as they are now in ``scope``, each once, best first."""
        scores = {f.fact.id: f for f in facts if isinstance(f, ScoredFact)}
        ids: dict[str, None] = {}
        for item in facts:
            if isinstance(item, ScoredFact | Fact):
                ids[item.fact.id if isinstance(item, ScoredFact) else item.id] = None
            else:
                ids.update(dict.fromkeys(f.id for f in self._parts.desk.resolve(item, scope)))
        return [
            replace(scores.get(fact.id) or ScoredFact(fact, 0.0), fact=fact)
            for fact in self.store.get_many(list(ids), scope)
        ]

    def refresh(self, plan: PromptPlan) -> PromptPlan:
        """``plan``, or a new one if one of its facts was changed or deleted since."""
        return self._parts.serving.preparer.refresh(plan)

    def observe(self, report: InjectionReport) -> None:
        """Learn from the report of a request: lost segments are encoded again. Never raises."""
        self._parts.serving.sender.observe(report)

    def complete(self, plan: PromptPlan, *, sampling: Sampling | None = None) -> Completion:
        """Send a prepared plan; the whole answer."""
        return self._parts.serving.sender.generate(plan, sampling or Sampling())[1]

    def complete_stream(
        self, plan: PromptPlan, *, sampling: Sampling | None = None
    ) -> Iterator[CompletionChunk]:
        """Send a prepared plan; text as it comes. Closing the iterator stops the engine."""
        return self._parts.serving.sender.stream(plan, sampling or Sampling())

    # -- answers ---------------------------------------------------------------------------

    def answer(
        self,
        question: MessagesLike,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        top_k: int | None = None,
        history: Sequence[ChatMessage] | None = None,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        inject: bool = True,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> Answer:
        """Answer with what is remembered. Nothing is added to the memory: :meth:`add` does that.

        Args:
            question: A question, or a conversation that ends in one.
            user_id: Whose memory.
            agent_id: Only what this agent was told.
            run_id: Only this session.
            app_id: Only this application.
            top_k: Facts recalled at most.
            history: Earlier messages of this conversation, before ``question``.
            filters: Metadata conditions of recall.
            threshold: Least cosine similarity of recall.
            inject: Whether stored KV may be used.
            sampling: How to sample.
            max_tokens: Tokens of the answer at most, in place of ``sampling.max_tokens``.

        Raises:
            NamespaceError: No user where one must be named.
            ContextOverflow: The conversation does not fit even without memory.
            ConfigurationError: No engine, or a message is malformed.
            EngineError: The engine cannot answer.
        """
        plan, sampling = self._plan_answer(
            question,
            user_id=user_id,
            agent_id=agent_id,
            run_id=run_id,
            app_id=app_id,
            top_k=top_k,
            history=history,
            filters=filters,
            threshold=threshold,
            inject=inject,
            sampling=sampling,
            max_tokens=max_tokens,
        )
        return as_answer(*self._parts.serving.sender.generate(plan, sampling))

    def stream(
        self,
        question: MessagesLike,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        top_k: int | None = None,
        history: Sequence[ChatMessage] | None = None,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        inject: bool = True,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> Iterator[CompletionChunk]:
        """:meth:`answer` as it comes. The last chunk carries the completion with its report.

        The prompt is planned at once, the engine is asked when the first chunk is. Closing the
        iterator early stops the engine's work.
        """
        plan, sampling = self._plan_answer(
            question,
            user_id=user_id,
            agent_id=agent_id,
            run_id=run_id,
            app_id=app_id,
            top_k=top_k,
            history=history,
            filters=filters,
            threshold=threshold,
            inject=inject,
            sampling=sampling,
            max_tokens=max_tokens,
        )
        return self._parts.serving.sender.stream(plan, sampling)

    def _plan_answer(
        self,
        question: MessagesLike,
        *,
        history: Sequence[ChatMessage] | None = None,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        **recall: Any,
    ) -> tuple[PreparedPlan, Sampling]:
        sampling = sampling or Sampling()
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=max_tokens)
        chat = [*as_chat(list(history or ())), *as_chat(question)]
        return self.prepare(chat, max_tokens=sampling.max_tokens, **recall), sampling


def as_answer(plan: PromptPlan, completion: Completion) -> Answer:
    """The completion with the facts of the plan that was sent."""
    facts = plan.facts if isinstance(plan, PreparedPlan) else ()
    return Answer(completion.text, completion.report, facts, completion)
