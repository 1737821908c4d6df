"""``InferScaleMemoryMiddleware``: long-term memory for ``create_agent``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables.config import var_child_runnable_config

from inferscale_sdk import AsyncMemory, Memory, MissingDependency, ScoredFact
from langchain_inferscale._scope import Ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of
from langchain_inferscale._turn import CALL_KEY
from langchain_inferscale.chat_models import ChatInferScale

try:
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ModelRequest,
        ModelResponse,
    )
    from langgraph.runtime import Runtime
except ImportError as error:
    raise MissingDependency("langchain", "agents", "InferScaleMemoryMiddleware") from error

__all__ = ["InferScaleMemoryMiddleware"]

_HEADER = "What is remembered from earlier conversations with the user:"


class InferScaleMemoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Recalls what matters for the user's message, and remembers the turn when it is over.

    Handles travel in the model call's settings: nothing is written into the agent's state, so
    checkpoints hold the conversation and nothing else, and summarising middleware has nothing to
    lose. A model other than :class:`ChatInferScale` gets the facts as text in its system message.

    The user is named in the constructor, in the agent's context (``context={"user_id": …}`` or an
    object with that attribute), or in ``config={"configurable": {"user_id": …}}``.

    Args:
        memory: Where facts are kept; by default the process's own memory.
        top_k: Facts recalled for a model call at most.
        threshold: Least cosine similarity.
        save: Whether to remember the turns.
        user_id: Whose memory, if this object serves one user only.
        agent_id: Of which agent.
        run_id: Of which session; threads need no ids of their own to be told apart.
        app_id: Of which application.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory | None = None,
        *,
        top_k: int = 20,
        threshold: float | None = None,
        save: bool = True,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> None:
        super().__init__()
        self.tools = []
        self._given = memory
        self.top_k = top_k
        self.threshold = threshold
        self.save = save
        self.user_id = user_id
        self.agent_id = agent_id
        self.run_id = run_id
        self.app_id = app_id

    @property
    def memory(self) -> Memory:
        """Where facts are kept."""
        return memory_of(self._given)

    # -- recall ----------------------------------------------------------------------------

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Call the model with what is remembered for the user's last message."""
        return handler(self._with_memory(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async twin of :meth:`wrap_model_call`."""
        return await handler(await asyncio.to_thread(self._with_memory, request))

    def _with_memory(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        ids = self._ids(request.runtime)
        found = self._recall(request.messages, ids)
        if not isinstance(request.model, ChatInferScale):
            return _as_text(request, found) if found else request
        settings = dict(request.model_settings)
        ours = dict(settings.get(CALL_KEY) or {})
        handles = [handle.marker for handle in self.memory.mint(found)]
        ours["handles"] = [*handles, *(ours.get("handles") or ())]
        settings[CALL_KEY] = {**ours, **merge_ids(object_ids(ours), ids)}
        return request.override(model_settings=settings)

    def _recall(self, messages: Sequence[BaseMessage], ids: Ids) -> list[ScoredFact]:
        question = _last_question(messages)
        if question is None:
            return []
        # What was said in this thread is a fact by now, too; it need not stand there twice.
        said = {message.text for message in messages}
        found = self.memory.search(question.text, top_k=self.top_k, threshold=self.threshold, **ids)
        return [scored for scored in found if scored.fact.text not in said]

    # -- remember --------------------------------------------------------------------------

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Remember the user's message and the answer."""
        messages = state["messages"]
        question = _last_question(messages)
        if not self.save or question is None:
            return None
        turn = [{"role": "user", "content": question.text}]
        after = messages[messages.index(question) + 1 :]
        answers = [m for m in after if isinstance(m, AIMessage) and m.text and not m.tool_calls]
        if answers:
            turn.append({"role": "assistant", "content": answers[-1].text})
        config = var_child_runnable_config.get() or {}
        thread = str((config.get("configurable") or {}).get("thread_id") or "")
        self.memory.add(turn, conversation_id=thread, **self._ids(runtime))
        return None

    async def aafter_agent(
        self, state: AgentState[Any], runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Async twin of :meth:`after_agent`."""
        return await asyncio.to_thread(self.after_agent, state, runtime)

    def _ids(self, runtime: Runtime[Any] | None) -> Ids:
        context = getattr(runtime, "context", None)
        return merge_ids(object_ids(self), object_ids(context or {}), run_ids())


def _last_question(messages: Sequence[BaseMessage]) -> HumanMessage | None:
    """What the user said last; a summary of the conversation stands in his name, too."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage) and "lc_source" not in message.additional_kwargs:
            return message if message.text.strip() else None
    return None


def _as_text(request: ModelRequest[Any], found: Sequence[ScoredFact]) -> ModelRequest[Any]:
    lines = [f"- {scored.fact.text}" for scored in reversed(found)]
    own = [request.system_prompt] if request.system_prompt else []
    text = "\n\n".join([*own, "\n".join([_HEADER, *lines])])
    return request.override(system_message=SystemMessage(text))
