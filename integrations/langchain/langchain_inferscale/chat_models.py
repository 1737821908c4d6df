"""``ChatInferScale``: a chat model on vLLM that injects what handles stand for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.utils.pydantic import is_pydantic_v1_subclass
from langchain_openai.chat_models.base import BaseChatOpenAI

from inferscale_sdk import ContextOverflow
from inferscale_sdk.bridge import deep_merge
from langchain_inferscale._extras import dumped, keep_chunk_extras, keep_extras
from langchain_inferscale._fields import InferScaleFields
from langchain_inferscale._scope import run_ids
from langchain_inferscale._stream import StreamTail
from langchain_inferscale._turn import (
    TURN_KEY,
    Turn,
    attached_handles,
    call_ids,
    is_worth_a_retry,
    split_call,
    with_config,
    with_report,
)

__all__ = ["ChatInferScale", "ChatOverflowError"]

_TRANSFER = "kv_transfer_params"


class ChatOverflowError(ContextOverflow, ContextOverflowError):
    """:class:`~inferscale_sdk.ContextOverflow`, as LangChain's middleware knows it."""


class ChatInferScale(InferScaleFields, BaseChatOpenAI):
    """A chat model on a vLLM server with attention-layer memory.

    Handles that a retriever, a memory, a tool or a middleware has put into the conversation are
    taken out, checked, and their facts injected in front of it; see
    :class:`inferscale_sdk.bridge.ChatBridge` for which of them count. Everything else is
    ``ChatOpenAI``: tools, structured output, streaming, batches.

        model = ChatInferScale(base_url="http://127.0.0.1:8000", user_id="alice")
        model.invoke("Where do I live?").response_metadata["inferscale"]

    Whose memory a request may use is named in the constructor, in the call
    (``invoke(…, user_id="alice")``) or in ``config={"configurable": {"user_id": "alice"}}``. One
    object serves many users at once if its constructor names none. Two different ids are an error.

    Args:
        memory: Store and engine; by default the process's own, see
            :func:`inferscale_sdk.bridge.shared_memory`.
        base_url: The server, if no memory is given; by default ``INFERSCALE_BASE_URL``.
        api_key: Its bearer token; by default ``INFERSCALE_API_KEY``. Never ``OPENAI_API_KEY``.
        model: Name of the served model; by default the server is asked.
        user_id: Whose memory, if this object serves one user only.
        agent_id: Only what this agent was told.
        run_id: Only this session.
        app_id: Only this application.
        inject: ``False`` gives the same prompts without using stored KV.
    """

    stream_usage: bool | None = True
    use_responses_api: bool | None = False

    # -- what LangChain asks about a model -------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "inferscale-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "inferscale"
        return params

    def _get_invocation_params(
        self, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        # These are the key of LangChain's answer cache: without the ids two users who ask the same
        # would share one answer, without the address two servers would.
        ids = call_ids(self, kwargs, run_ids())
        params = super()._get_invocation_params(stop=stop, **split_call(kwargs)[1])
        return {**params, "inferscale_ids": ids, "inferscale_server": self.openai_api_base}

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the served model's tokenizer."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.bridge.engine.tokenizer.encode_plain(text)

    def get_num_tokens_from_messages(
        self, messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None, **_: Any
    ) -> int:
        """Tokens of the conversation as the model would see it, without memory."""
        fields = self.bind_tools(tools).kwargs if tools else {}  # type: ignore[attr-defined]
        payload = super()._get_request_payload(list(messages), **fields)
        tokenizer = self.bridge.engine.tokenizer
        text = tokenizer.render(payload["messages"], tools=payload.get("tools"))
        return len(tokenizer.encode(text))

    # -- ids of the run configuration ------------------------------------------------------

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """See ``BaseChatModel.invoke``; ids in ``configurable`` count."""
        return super().invoke(input, config, stop=stop, **with_config(config, kwargs))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """Async twin of :meth:`invoke`."""
        return await super().ainvoke(input, config, stop=stop, **with_config(config, kwargs))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """See ``BaseChatModel.stream``; ids in ``configurable`` count."""
        return super().stream(input, config, stop=stop, **with_config(config, kwargs))

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """Async twin of :meth:`stream`."""
        async for chunk in super().astream(input, config, stop=stop, **with_config(config, kwargs)):
            yield chunk

    # -- the request -----------------------------------------------------------------------

    def _open(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> Turn:
        """The payload of a call, with its handles resolved."""
        ours, rest = split_call(kwargs)
        payload = super()._get_request_payload(messages, stop=stop, **rest)
        # The base class lets the call's body replace the constructor's.
        payload["extra_body"] = deep_merge(self.extra_body, rest.get("extra_body"))
        try:
            request = self.bridge.open(
                payload["messages"],
                handles=attached_handles(messages, ours.get("handles")),
                fields=payload,
                inject=self.may_inject(payload["model"]),
                **call_ids(self, kwargs, run_ids()),
            )
        except ContextOverflow as error:
            raise ChatOverflowError(error.n_tokens, error.limit, "recall or say less") from error
        return Turn(request, payload)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        turn: Turn | None = kwargs.pop(TURN_KEY, None)
        if turn is None:
            turn = self._open(self._convert_input(input_).to_messages(), stop, kwargs)
        flow = {k: v for k, v in kwargs.items() if k in ("stream", "stream_options")}
        return {**turn.payload(), **flow}

    # -- whole answers ---------------------------------------------------------------------

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        turn = self._open(messages, stop, kwargs)
        send = super()._generate
        try:
            result = send(messages, stop, run_manager, **_sent(kwargs, turn))
        except openai.APIStatusError as error:
            turn = self._again(turn, error)
            result = send(messages, stop, run_manager, **_sent(kwargs, turn))
        return self._finish(turn, result)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # Store and tokenizer block; they must not hold up the event loop.
        turn = await asyncio.to_thread(self._open, messages, stop, kwargs)
        send = super()._agenerate
        try:
            result = await send(messages, stop, run_manager, **_sent(kwargs, turn))
        except openai.APIStatusError as error:
            turn = await asyncio.to_thread(self._again, turn, error)
            result = await send(messages, stop, run_manager, **_sent(kwargs, turn))
        return await asyncio.to_thread(self._finish, turn, result)

    def _again(self, turn: Turn, error: openai.APIStatusError) -> Turn:
        """The turn without injection, after the server failed on it."""
        plan = turn.request.plan
        if plan is None or not plan.segments or not is_worth_a_retry(error):
            raise error
        return Turn(self.bridge.retry_as_text(turn.request, error), turn.asked)

    def _create_chat_result(
        self,
        response: dict[str, Any] | openai.BaseModel,
        generation_info: dict[str, Any] | None = None,
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        keep_extras(result, response if isinstance(response, dict) else dumped(response))
        return result

    def _finish(self, turn: Turn, result: ChatResult) -> ChatResult:
        said = result.llm_output or {}
        response = {
            "usage": said.get("token_usage"),
            "choices": [{"finish_reason": "stop"}],
            _TRANSFER: said.pop(_TRANSFER, None),
        }
        report = self.bridge.finish(turn.request, response)
        for generation in result.generations:
            if isinstance(generation.message, AIMessage):
                with_report(generation.message, report, turn.request)
        return result

    # -- streams ---------------------------------------------------------------------------

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        stream_usage: bool | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        turn = self._open(messages, stop, {**kwargs, "stream": True})
        parent = super()._stream

        def send(turn: Turn) -> Any:
            turn.request.start()
            sent = _sent(kwargs, turn)
            return parent(messages, stop, None, stream_usage=stream_usage, **sent)

        chunks = send(turn)
        try:
            try:
                chunk = next(chunks, None)
            except openai.APIStatusError as error:
                turn = self._again(turn, error)
                chunks = send(turn)
                chunk = next(chunks, None)
            tail = StreamTail(turn.request)
            while chunk is not None:
                if (passed := tail.pass_on(chunk)) is not None:
                    if run_manager:
                        run_manager.on_llm_new_token(passed.text, chunk=passed)
                    yield passed
                chunk = next(chunks, None)
        finally:
            # Whoever stops listening also stops the server's work, now and not at some later time.
            chunks.close()
        tail.count()
        end = tail.last(self.bridge.finish(turn.request))
        if run_manager:
            run_manager.on_llm_new_token("", chunk=end)
        yield end

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        *,
        stream_usage: bool | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        turn = await asyncio.to_thread(self._open, messages, stop, {**kwargs, "stream": True})
        parent = super()._astream

        def send(turn: Turn) -> Any:
            turn.request.start()
            sent = _sent(kwargs, turn)
            return parent(messages, stop, None, stream_usage=stream_usage, **sent)

        chunks = send(turn)
        try:
            try:
                chunk = await anext(chunks, None)
            except openai.APIStatusError as error:
                turn = await asyncio.to_thread(self._again, turn, error)
                chunks = send(turn)
                chunk = await anext(chunks, None)
            tail = StreamTail(turn.request)
            while chunk is not None:
                if (passed := tail.pass_on(chunk)) is not None:
                    if run_manager:
                        await run_manager.on_llm_new_token(passed.text, chunk=passed)
                    yield passed
                chunk = await anext(chunks, None)
        finally:
            await chunks.aclose()
        tail.count()
        end = tail.last(await self.bridge.afinish(turn.request))
        if run_manager:
            await run_manager.on_llm_new_token("", chunk=end)
        yield end

    def _convert_chunk_to_generation_chunk(
        self,
        chunk: dict[str, Any],
        default_chunk_class: type,
        base_generation_info: dict[str, Any] | None,
    ) -> ChatGenerationChunk | None:
        generation = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is not None:
            keep_chunk_extras(generation, chunk)
        return generation

    # -- structured output -----------------------------------------------------------------

    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: Literal["function_calling", "json_mode", "json_schema"] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """See ``BaseChatOpenAI.with_structured_output``.

        The default is ``json_schema``: the server guides decoding by the schema, which needs no
        tool parser and holds small models to it as well. Models of pydantic's first version have
        no such schema and go by ``function_calling``.
        """
        if method is None:
            old = isinstance(schema, type) and is_pydantic_v1_subclass(schema)
            method = "function_calling" if old else "json_schema"
        return super().with_structured_output(schema, method=method, **kwargs)


def _sent(kwargs: Mapping[str, Any], turn: Turn) -> dict[str, Any]:
    return {**split_call(kwargs)[1], TURN_KEY: turn}
