"""From the messages of a framework to a request with injected memory, and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from inferscale_sdk.bridge.request import BridgedRequest, HandleCount
from inferscale_sdk.bridge.sweep import Swept, sweep, sweep_text
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.errors import ConfigurationError, ContextOverflow, EngineError, NamespaceError
from inferscale_sdk.memory import AsyncMemory, Memory, PreparedPlan
from inferscale_sdk.prompt.cut import defuse, defuse_message, place_memory
from inferscale_sdk.prompt.template import PLAIN_TEXT
from inferscale_sdk.types import FactHandle, InjectionReport, Message

__all__ = ["ChatBridge"]

log = logging.getLogger(__name__)

DEFAULT_RESERVE_TOKENS = 256
"""Kept free for an answer whose request does not say how long it may become."""

_CHANGES_THE_PROMPT = ("chat_template", "documents", "continue_final_message", "echo")
"""Request fields that make the server render another prompt than the one planned here."""

Handles = Iterable[FactHandle | str]
Messages = Sequence[Message | Mapping[str, Any]]


class ChatBridge:
    """Turns handles in chat requests into injected facts. Safe for several threads and tasks.

    **Which handles count.** A handle is honoured if this store signed it, its fact belongs to the
    request's namespace, and the fact still reads as it did. Nothing else is asked, on purpose:
    frameworks put retrieved context into user messages as well as into system and tool messages,
    so the role says nothing about who wrote a handle. Nobody can make one up; one of another user
    fails on the namespace; one of an older text fails on the version. What is left is a user who
    repeats a handle that was made for himself, and he gets what his own memory holds. Every other
    handle is taken out of the text, counted and logged, and the model never sees any.

    Args:
        memory: Whose handles; it must have been built with a :class:`VLLMEngine`.

    Raises:
        ConfigurationError: The memory has no engine, or one that does not serve the OpenAI API.
    """

    def __init__(self, memory: Memory | AsyncMemory) -> None:
        self.memory = memory.unwrap() if isinstance(memory, AsyncMemory) else memory
        engine = self.memory.engine
        if not isinstance(engine, VLLMEngine):
            what = "no engine" if engine is None else f"a {type(engine).__name__}"
            raise ConfigurationError(
                f"this memory has {what}, but requests of a framework go to a server; build it "
                "with one: Memory(VLLMEngine('http://127.0.0.1:8000'))"
            )
        self.engine = engine

    # -- out -------------------------------------------------------------------------------

    def open(
        self,
        messages: Messages,
        *,
        handles: Handles = (),
        fields: Mapping[str, Any] | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        inject: bool = True,
    ) -> BridgedRequest:
        """What to send for a chat.

        Args:
            messages: OpenAI-style messages, with handles anywhere in them.
            handles: Handles that ride outside the messages; they count before those inside.
            fields: The other fields of the request, ``extra_body`` among or beside them. Read are
                ``max_tokens``, ``tools``, ``stream``, ``chat_template_kwargs``, and those that
                change the prompt.
            user_id: Whose memory.
            agent_id: Only what this agent was told.
            run_id: Only this session.
            app_id: Only this application.
            inject: Whether stored KV may be used.

        Raises:
            NamespaceError: There are handles, but no user where one must be named.
            ContextOverflow: The conversation does not fit even without memory.
            ConfigurationError: A message is malformed.
            EngineUnavailable: Nobody has answered yet, so that the model is unknown.
        """
        asked = _flat(fields)
        swept = sweep(messages)
        ids = _ids(user_id, agent_id, run_id, app_id)
        markers = _all_markers(handles, swept)
        reason = _why_text(swept, asked)
        plan = self._plan(
            swept.messages,
            markers,
            ids,
            asked,
            inject=inject and not reason,
            tools=asked.get("tools"),
            template_kwargs=asked.get("chat_template_kwargs"),
        )
        if plan is None:
            return BridgedRequest(None, swept.messages, list(swept.messages), {})
        count = self._count(plan, markers)
        if reason:
            return self._in_messages(plan, swept, count, reason)
        exchange = self.engine.open(
            plan, max_tokens=_answer_tokens(asked) or 1, stream=bool(asked.get("stream"))
        )
        return BridgedRequest(
            plan, swept.messages, exchange.messages, exchange.fields, count, exchange
        )

    def open_text(
        self,
        prompt: str,
        *,
        handles: Handles = (),
        fields: Mapping[str, Any] | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        inject: bool = True,
    ) -> BridgedRequest:
        """What to send for a text completion: the memory stands before the prompt.

        ``extra_body["prompt"]`` holds the exact tokens, or the text where there is no memory. In a
        prompt with memory, control tokens of the model are plain text, as in a user's message.

        Args and errors are those of :meth:`open`.
        """
        asked = _flat(fields)
        clean, found = sweep_text(prompt)
        conversation = ({"role": "user", "content": clean},)
        markers = _all_markers(handles, Swept(conversation, found))
        plan = None
        if markers:
            plan = self._plan(
                conversation,
                markers,
                _ids(user_id, agent_id, run_id, app_id),
                asked,
                inject=inject,
                template_kwargs={"chat_template": PLAIN_TEXT},
            )
        if plan is None or not plan.fact_ids:
            return BridgedRequest(
                None, conversation, [], {"prompt": clean}, HandleCount(inert=len(markers))
            )
        exchange = self.engine.open(
            plan, max_tokens=_answer_tokens(asked) or 1, stream=bool(asked.get("stream"))
        )
        body = {**exchange.fields, "kv_transfer_params": {**exchange.fields["kv_transfer_params"]}}
        body["prompt"] = body["kv_transfer_params"].pop("prompt_token_ids")
        if not body["kv_transfer_params"]:
            del body["kv_transfer_params"]
        count = self._count(plan, markers)
        return BridgedRequest(plan, conversation, [], body, count, exchange)

    def retry_as_text(self, request: BridgedRequest, error: Exception) -> BridgedRequest:
        """The same tokens without injection, after the server failed on ``request``.

        Raises:
            EngineError: From ``error``, if there was nothing to leave out or text is not wanted.
        """
        failure = EngineError(f"the server failed: {type(error).__name__}")
        plan = request.plan
        if plan is None or request.exchange is None or not plan.segments:
            raise failure from error
        text = self.memory._parts.serving.preparer.as_text(plan, failure)
        if not isinstance(text, PreparedPlan):
            raise failure from error
        exchange = self.engine.open(text, max_tokens=1, stream=request.exchange.stream)
        body = exchange.fields
        if "prompt" in request.extra_body:
            body = {**body, "prompt": body["kv_transfer_params"]["prompt_token_ids"]}
            del body["kv_transfer_params"]
        return BridgedRequest(
            text, request.conversation, exchange.messages, body, request.handles, exchange
        )

    # -- back ------------------------------------------------------------------------------

    def finish(
        self, request: BridgedRequest, response: Mapping[str, Any] | None = None
    ) -> InjectionReport:
        """What became of the memory; lost segments are encoded again.

        Args:
            request: As :meth:`open` gave it.
            response: The whole response: ``usage``, ``choices`` and ``kv_transfer_params``.
                ``None`` after a stream, whose usage :meth:`BridgedRequest.count` was given.

        Raises:
            EngineError: The server did not take the exact tokens.
        """
        if response is not None:
            request.count(response.get("usage") or {})
        if request.exchange is None or request.plan is None:
            return request.text_report()
        report = request.exchange.report(self.engine.answer_to(request.exchange, response))
        return self.memory._parts.serving.sender.settle(request.plan, report)

    # -- async -----------------------------------------------------------------------------

    async def aopen(self, messages: Messages, **options: Any) -> BridgedRequest:
        """Async twin of :meth:`open`: the store and the tokenizer work in a thread."""
        return await asyncio.to_thread(partial(self.open, messages, **options))

    async def aopen_text(self, prompt: str, **options: Any) -> BridgedRequest:
        """Async twin of :meth:`open_text`."""
        return await asyncio.to_thread(partial(self.open_text, prompt, **options))

    async def afinish(
        self, request: BridgedRequest, response: Mapping[str, Any] | None = None
    ) -> InjectionReport:
        """Async twin of :meth:`finish`."""
        return await asyncio.to_thread(self.finish, request, response)

    # -- inside ----------------------------------------------------------------------------

    def _plan(
        self,
        messages: Sequence[Mapping[str, Any]],
        markers: Sequence[str],
        ids: Mapping[str, Any],
        asked: Mapping[str, Any],
        **options: Any,
    ) -> PreparedPlan | None:
        """The prompt, or ``None`` when nobody's memory was asked for and nobody is named."""
        given = _answer_tokens(asked)
        # One text with all of them: they are looked up together, and counted once.
        facts = [" ".join(markers)] if markers else []
        prepare = partial(self.memory.prepare, messages, facts=facts, **options, **ids)
        try:
            try:
                return prepare(max_tokens=given or DEFAULT_RESERVE_TOKENS)
            except ContextOverflow:
                if given is not None:
                    raise
                return prepare(max_tokens=1)
        except NamespaceError:
            # An ordinary chat of an application that has memory elsewhere.
            if markers or ids:
                raise
            return None

    def _count(self, plan: PreparedPlan, markers: Sequence[str]) -> HandleCount:
        honoured = len(plan.facts) + len(plan.dropped_fact_ids)
        inert = max(len(markers) - honoured, 0)
        if inert:
            log.info("%d of %d fact handles in a request were left inert", inert, len(markers))
        return HandleCount(honoured, inert)

    def _in_messages(
        self, plan: PreparedPlan, swept: Swept, count: HandleCount, reason: str
    ) -> BridgedRequest:
        """The conversation as it stands, with the memory as text in its system message."""
        messages = list(swept.messages)
        if plan.facts:
            planner = self.memory._parts.serving.planner()
            lines = "".join(planner.frame.line(scored.fact) for scored in reversed(plan.facts))
            text = defuse(lines, planner.tokenizer)
            # The server tokenises this: what people wrote must steer no more than the facts do.
            messages = [defuse_message(message, planner.tokenizer) for message in messages]
            messages = place_memory(planner.frame, messages, text, in_system=True)
            log.info("memory is given as text: %s", reason)
        return BridgedRequest(
            plan, swept.messages, messages, {"cache_salt": plan.cache_salt}, count, None, reason
        )


def _flat(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(fields or {})
    return {**given, **(given.pop("extra_body", None) or {})}


def _ids(*values: str | None) -> dict[str, Any]:
    names = ("user_id", "agent_id", "run_id", "app_id")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _all_markers(handles: Handles, swept: Swept) -> tuple[str, ...]:
    attached = [marker for handle in handles for marker in sweep_text(str(handle))[1]]
    return tuple(dict.fromkeys([*attached, *swept.markers]))


def _answer_tokens(asked: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if isinstance(asked.get(name), int):
            return int(asked[name])
    return None


def _why_text(swept: Swept, asked: Mapping[str, Any]) -> str:
    """Why the prompt cannot be planned here; empty if it can."""
    for name in _CHANGES_THE_PROMPT:
        if asked.get(name):
            return f"the request sets {name}, so that the server must render the prompt itself"
    if asked.get("add_generation_prompt") is False:
        return "the request sets add_generation_prompt, so that the server must render the prompt"
    for message in swept.messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type", "text") != "text":
                return f"the conversation has a part of type {part.get('type')!r}"
    return ""
