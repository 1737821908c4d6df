"""``InferScaleLLM``: a model on vLLM that injects what handles stand for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import openai
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.llms.inferscale._clients import recorded
from llama_index.llms.inferscale._setup import bridge_to, client_key
from llama_index.llms.inferscale._stream import acarried, carried
from llama_index.llms.inferscale._turn import Turn, attached_handles, split_call, worth_a_retry
from llama_index.llms.openai.utils import to_openai_message_dicts
from llama_index.llms.openai_like import OpenAILike

from inferscale_sdk import AsyncMemory, InjectionReport, Memory
from inferscale_sdk.bridge import ChatBridge, deep_merge, sweep, sweep_text

__all__ = ["InferScaleLLM"]

OnReport = Callable[[InjectionReport], None]


class InferScaleLLM(OpenAILike):
    """A model on a vLLM server with attention-layer memory.

    Handles that a retriever, a memory or a tool has put into the conversation are taken out,
    checked, and their facts injected in front of it; see
    :class:`inferscale_sdk.bridge.ChatBridge` for which of them count. Everything else is
    ``OpenAILike``: tools, structured output, streaming.

        llm = InferScaleLLM(memory, user_id="alice")
        llm.chat(messages).additional_kwargs["inferscale"]

    Whose memory a request may use is named in the constructor or in the call
    (``chat(…, inferscale={"user_id": "alice"})``); two different ids are an error. Engines and
    agents do not pass such an argument on: give each user's its own :meth:`scoped` copy, which
    shares everything.

    Args:
        memory: Store and engine; by default the process's own, see
            :func:`inferscale_sdk.bridge.shared_memory`.
        api_base: The server, if no memory is given; by default ``INFERSCALE_BASE_URL``.
        api_key: Its bearer token, by default ``INFERSCALE_API_KEY``. Never ``OPENAI_API_KEY``.
        model: Name of the served model; by default the server is asked.
        context_window: In tokens; by default the server is asked.
        on_report: Called with the report of every request, in whatever thread sent it. Query and
            chat engines keep nothing of a response but its text.
        **kwargs: As for ``OpenAILike``, and the fields of this class.
    """

    user_id: str | None = Field(default=None, description="Whose memory.")
    agent_id: str | None = Field(default=None, description="Only what this agent was told.")
    run_id: str | None = Field(default=None, description="Only this session.")
    app_id: str | None = Field(default=None, description="Only this application.")
    inject: bool = Field(default=True, description="Whether stored KV may be used.")
    use_memory: bool = Field(
        default=True, description="Whether handles are honoured; without, they are taken out."
    )
    is_chat_model: bool = Field(default=True, description="Chat or text completion.")
    is_function_calling_model: bool = Field(
        default=True, description="Whether the server was started with a tool-call parser."
    )

    _bridge: ChatBridge = PrivateAttr()
    _on_report: OnReport | None = PrivateAttr(default=None)
    _clients: dict[str, openai.OpenAI] = PrivateAttr(default_factory=dict)
    _aclients: WeakKeyDictionary[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = PrivateAttr(
        default_factory=WeakKeyDictionary
    )

    def __init__(
        self,
        memory: Memory | AsyncMemory | None = None,
        *,
        model: str | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        context_window: int | None = None,
        on_report: OnReport | None = None,
        **kwargs: Any,
    ) -> None:
        bridge = bridge_to(memory, api_base, api_key)
        if model is None or context_window is None:
            info = bridge.engine.info()
            model = model or info.model
            context_window = context_window or info.max_model_len
        super().__init__(
            model=model,
            context_window=context_window,
            # Both are named, or the base class would read OPENAI_API_KEY and OPENAI_API_BASE and
            # send a key, or the conversation, where it does not belong.
            api_base=bridge.engine.base_url + "/v1",
            api_key=client_key(api_key),
            **kwargs,
        )
        self._bridge = bridge
        self._on_report = on_report

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised form."""
        return "InferScaleLLM"

    @property
    def bridge(self) -> ChatBridge:
        """Where handles become facts."""
        return self._bridge

    def scoped(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
    ) -> InferScaleLLM:
        """This model for another user, agent or session; what is not named stays."""
        ids = {"user_id": user_id, "agent_id": agent_id, "run_id": run_id, "app_id": app_id}
        named = {name: value for name, value in ids.items() if value is not None}
        return self.model_copy(update=named)

    def without_memory(self) -> InferScaleLLM:
        """This model without memory, for rerankers: they are shown the texts beside the handles."""
        return self.model_copy(update={"use_memory": False})

    # -- clients ---------------------------------------------------------------------------

    def _get_client(self) -> openai.OpenAI:
        if self._client is not None or not self.reuse_client:
            return recorded(super()._get_client())
        # One for all scoped copies.
        client = self._clients.get("")
        if client is None:
            made = openai.OpenAI(**self._get_credential_kwargs())
            client = self._clients.setdefault("", made)
        return recorded(client)

    def _get_aclient(self) -> openai.AsyncOpenAI:
        if self._aclient is not None or not self.reuse_client:
            return recorded(super()._get_aclient())
        # One per event loop: engines start loops of their own, and connections belong to the one
        # they were made in.
        loop = asyncio.get_running_loop()
        client = self._aclients.get(loop)
        if client is None:
            client = openai.AsyncOpenAI(**self._get_credential_kwargs(is_async=True))
            self._aclients[loop] = client
        return recorded(client)

    def close(self) -> None:
        """Close the connections of calls that wait; the memory stays open."""
        client = self._clients.pop("", None)
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and those of calls that wait."""
        client = self._aclients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        self.close()

    # -- what is sent ----------------------------------------------------------------------

    def _get_model_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        fields: dict[str, Any] = super()._get_model_kwargs(**kwargs)
        # The base class lets the constructor's extra_body replace the call's.
        body = deep_merge(self.additional_kwargs.get("extra_body"), kwargs.get("extra_body"))
        if body:
            fields["extra_body"] = body
        if fields.get("stream"):
            options = fields.get("stream_options") or {}
            fields["stream_options"] = {**options, "include_usage": True}
        return fields

    def _update_max_tokens(self, all_kwargs: dict[str, Any], prompt: str) -> None:
        """Room for the rest of the context, as for chats: vLLM's default is 16 tokens."""
        if all_kwargs.get("max_tokens") is None:
            sent = (all_kwargs.get("extra_body") or {}).get("prompt", prompt)
            ids = (
                self._bridge.engine.tokenizer.encode_plain(sent) if isinstance(sent, str) else sent
            )
            # At least one, so that the server says what is too long.
            all_kwargs["max_tokens"] = max(self.context_window - len(ids), 1)

    def _may_inject(self, fields: Mapping[str, Any]) -> bool:
        """Whether stored KV may be used; another model, such as a LoRA adapter, has its own."""
        asked = fields.get("model", self.model)
        return bool(self.inject and asked == self._bridge.engine.info().model)

    def _open(
        self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any], *, stream: bool
    ) -> Turn:
        ids, handles, rest = split_call(self, kwargs)
        fields = self._get_model_kwargs(**rest, **({"stream": True} if stream else {}))
        plain: list[Any] = list(to_openai_message_dicts(list(messages), model=self.model))
        if not self.use_memory:
            plain, handles, messages = list(sweep(plain).messages), [], []
        request = self._bridge.open(
            plain,
            handles=[*handles, *attached_handles(messages)],
            fields=fields,
            inject=self._may_inject(fields),
            **ids,
        )
        return Turn(request, rest)

    def _open_text(self, prompt: str, kwargs: Mapping[str, Any], *, stream: bool) -> Turn:
        ids, handles, rest = split_call(self, kwargs)
        fields = self._get_model_kwargs(**rest, **({"stream": True} if stream else {}))
        if not self.use_memory:
            prompt, handles = sweep_text(prompt)[0], []
        request = self._bridge.open_text(
            prompt, handles=handles, fields=fields, inject=self._may_inject(fields), **ids
        )
        return Turn(request, rest)

    def _sent(self, turn: Turn) -> dict[str, Any]:
        body = deep_merge(turn.kwargs.get("extra_body"), turn.request.extra_body)
        if "prompt" not in body:
            # Laid over what the base class makes of the caller's messages, also when nothing but
            # handles was in them.
            body["messages"] = turn.request.messages or [{"role": "user", "content": ""}]
        return turn.sent(body)

    def _again(self, turn: Turn, error: openai.APIStatusError) -> Turn:
        """The turn without injection, after the server failed on it."""
        if not worth_a_retry(turn.request, error):
            raise error
        return Turn(self._bridge.retry_as_text(turn.request, error), turn.kwargs)

    def _report(self, turn: Turn, raw: Any = None) -> InjectionReport:
        response = raw.model_dump() if isinstance(raw, openai.BaseModel) else raw
        report = self._bridge.finish(turn.request, response)
        if self._on_report is not None:
            self._on_report(report)
        return report

    # -- whole answers ---------------------------------------------------------------------

    def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        turn = self._open(messages, kwargs, stream=False)
        send: Callable[..., ChatResponse] = super()._chat
        try:
            response = send(messages, **self._sent(turn))
        except openai.APIStatusError as error:
            turn = self._again(turn, error)
            response = send(messages, **self._sent(turn))
        return turn.with_report(response, self._report(turn, response.raw))

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        # Store and tokenizer block; they must not hold up the event loop.
        turn = await asyncio.to_thread(self._open, messages, kwargs, stream=False)
        send: Callable[..., Awaitable[ChatResponse]] = super()._achat
        try:
            response = await send(messages, **self._sent(turn))
        except openai.APIStatusError as error:
            turn = await asyncio.to_thread(self._again, turn, error)
            response = await send(messages, **self._sent(turn))
        return turn.with_report(response, await asyncio.to_thread(self._report, turn, response.raw))

    def _complete(self, prompt: str, **kwargs: Any) -> CompletionResponse:
        turn = self._open_text(prompt, kwargs, stream=False)
        send: Callable[..., CompletionResponse] = super()._complete
        try:
            response = send(prompt, **self._sent(turn))
        except openai.APIStatusError as error:
            turn = self._again(turn, error)
            response = send(prompt, **self._sent(turn))
        return turn.with_report(response, self._report(turn, response.raw))

    async def _acomplete(self, prompt: str, **kwargs: Any) -> CompletionResponse:
        turn = await asyncio.to_thread(self._open_text, prompt, kwargs, stream=False)
        send: Callable[..., Awaitable[CompletionResponse]] = super()._acomplete
        try:
            response = await send(prompt, **self._sent(turn))
        except openai.APIStatusError as error:
            turn = await asyncio.to_thread(self._again, turn, error)
            response = await send(prompt, **self._sent(turn))
        return turn.with_report(response, await asyncio.to_thread(self._report, turn, response.raw))

    # -- streams ---------------------------------------------------------------------------

    def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        turn = self._open(messages, kwargs, stream=True)
        send: Callable[..., Generator[ChatResponse, None, None]] = super()._stream_chat

        def begin(turn: Turn) -> Generator[ChatResponse, None, None]:
            return send(messages, **self._sent(turn))

        return carried(turn, begin, self._again, self._report)

    def _stream_complete(self, prompt: str, **kwargs: Any) -> CompletionResponseGen:
        turn = self._open_text(prompt, kwargs, stream=True)
        send: Callable[..., Generator[CompletionResponse, None, None]] = super()._stream_complete

        def begin(turn: Turn) -> Generator[CompletionResponse, None, None]:
            return send(prompt, **self._sent(turn))

        return carried(turn, begin, self._again, self._report)

    async def _astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        turn = await asyncio.to_thread(self._open, messages, kwargs, stream=True)
        send: Callable[..., Awaitable[AsyncGenerator[ChatResponse, None]]] = super()._astream_chat

        async def begin(turn: Turn) -> AsyncGenerator[ChatResponse, None]:
            return await send(messages, **self._sent(turn))

        return acarried(turn, begin, self._again, self._report)

    async def _astream_complete(self, prompt: str, **kwargs: Any) -> CompletionResponseAsyncGen:
        turn = await asyncio.to_thread(self._open_text, prompt, kwargs, stream=True)
        send: Callable[..., Awaitable[AsyncGenerator[CompletionResponse, None]]] = (
            super()._astream_complete
        )

        async def begin(turn: Turn) -> AsyncGenerator[CompletionResponse, None]:
            return await send(prompt, **self._sent(turn))

        return acarried(turn, begin, self._again, self._report)
