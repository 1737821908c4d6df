"""``InferScaleLLM``: text completion with injected memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_openai.llms.base import BaseOpenAI

from inferscale_sdk.bridge import BridgedRequest, deep_merge, report_metadata
from langchain_inferscale._fields import InferScaleFields
from langchain_inferscale._scope import run_ids
from langchain_inferscale._turn import CALL_KEY, call_ids, split_call, with_config

__all__ = ["InferScaleLLM"]

# What the call in progress was given: LangChain asks for its cache's key without saying for whom.
_CALL: ContextVar[Mapping[str, Any]] = ContextVar("inferscale_call", default=MappingProxyType({}))

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class InferScaleLLM(InferScaleFields, BaseOpenAI):
    """A text completion model on a vLLM server with attention-layer memory.

    The memory stands before the prompt. Each prompt of a batch is a request of its own: the
    endpoint takes several prompts, but one set of segments and one cache salt.

    Args are those of :class:`~langchain_inferscale.ChatInferScale`. In a prompt with memory the
    model's control tokens are plain text; use the chat model for prompts in chat form.
    """

    @property
    def _llm_type(self) -> str:
        return "inferscale"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        # The key of LangChain's answer cache.
        call = _CALL.get()
        ids = call_ids(self, call, run_ids())
        handles = [str(handle) for handle in split_call(call)[0].get("handles") or ()]
        server = {
            "inferscale_ids": ids,
            "inferscale_handles": handles,
            "inferscale_server": self.openai_api_base,
        }
        return {**super()._identifying_params, "model_name": self.model_name, **server}

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the served model's tokenizer."""
        return self.bridge.engine.tokenizer.encode_plain(text)

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> str:
        """See ``BaseLLM.invoke``; ids in ``configurable`` count."""
        return super().invoke(input, config, stop=stop, **with_config(config, kwargs))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Async twin of :meth:`invoke`."""
        return await super().ainvoke(input, config, stop=stop, **with_config(config, kwargs))

    def generate(self, prompts: list[str], *args: Any, **kwargs: Any) -> LLMResult:
        """See ``BaseLLM.generate``; the cache keeps users and handles of calls apart."""
        token = _CALL.set(kwargs)
        try:
            return super().generate(prompts, *args, **kwargs)
        finally:
            _CALL.reset(token)

    async def agenerate(self, prompts: list[str], *args: Any, **kwargs: Any) -> LLMResult:
        """Async twin of :meth:`generate`."""
        token = _CALL.set(kwargs)
        try:
            return await super().agenerate(prompts, *args, **kwargs)
        finally:
            _CALL.reset(token)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Each input by itself, so that each may have a user of its own."""
        from langchain_core.runnables import RunnableLambda

        one: RunnableLambda[LanguageModelInput, str] = RunnableLambda(
            lambda text, config: self.invoke(text, config, **kwargs)
        )
        return one.batch(inputs, config, return_exceptions=return_exceptions)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Async twin of :meth:`batch`."""
        from langchain_core.runnables import RunnableLambda

        async def complete(text: LanguageModelInput, config: RunnableConfig) -> str:
            return await self.ainvoke(text, config, **kwargs)

        one: RunnableLambda[LanguageModelInput, str] = RunnableLambda(complete)
        return await one.abatch(inputs, config, return_exceptions=return_exceptions)

    # -- requests --------------------------------------------------------------------------

    def _open(
        self, prompt: str, stop: list[str] | None, kwargs: Mapping[str, Any], *, stream: bool
    ) -> tuple[BridgedRequest, dict[str, Any]]:
        """A request and the arguments for the client."""
        ours, rest = split_call(kwargs)
        params = {"model": self.model_name, **self._invocation_params, **rest}
        if stop is not None:
            params["stop"] = stop
        if params.get("max_tokens") == -1:
            del params["max_tokens"]
        if stream:
            params |= {"stream": True, "stream_options": {"include_usage": True}}
        body = deep_merge(self.extra_body, rest.get("extra_body"))
        request = self.bridge.open_text(
            prompt,
            handles=ours.get("handles") or (),
            fields={**params, "extra_body": body},
            inject=self.may_inject(params["model"]),
            **call_ids(self, kwargs, run_ids()),
        )
        ours_body = dict(request.extra_body)
        params["prompt"] = ours_body.pop("prompt")
        params["extra_body"] = deep_merge(body, ours_body)
        return request, params

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        answers = []
        for prompt in prompts:
            request, params = self._open(prompt, stop, kwargs, stream=False)
            response = self.client.create(**params).model_dump()
            answers.append((response, request, self.bridge.finish(request, response)))
        return self._result(answers)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        async def one(prompt: str) -> tuple[dict[str, Any], BridgedRequest, Any]:
            request, params = await asyncio.to_thread(
                self._open, prompt, stop, kwargs, stream=False
            )
            response = (await self.async_client.create(**params)).model_dump()
            return response, request, await self.bridge.afinish(request, response)

        return self._result(await asyncio.gather(*map(one, prompts)))

    def _result(self, answers: list[tuple[dict[str, Any], BridgedRequest, Any]]) -> LLMResult:
        generations: list[list[Generation]] = []
        usage = dict.fromkeys(_COUNTS, 0)
        for response, request, report in answers:
            metadata = report_metadata(report, request.handles)
            generations.append(
                [
                    Generation(
                        text=choice["text"],
                        generation_info={
                            "finish_reason": choice.get("finish_reason"),
                            "logprobs": choice.get("logprobs"),
                            CALL_KEY: metadata,
                        },
                    )
                    for choice in response["choices"]
                ]
            )
            for name in _COUNTS:
                usage[name] += (response.get("usage") or {}).get(name) or 0
        return LLMResult(
            generations=generations,
            llm_output={"token_usage": usage, "model_name": self.model_name},
        )

    # -- streams ---------------------------------------------------------------------------

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        request, params = self._open(prompt, stop, kwargs, stream=True)
        request.start()
        with self.client.create(**params) as events:
            for event in events:
                chunk = _chunk(request, event.model_dump())
                if chunk is None:
                    continue
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk, verbose=self.verbose)
                yield chunk
        metadata = report_metadata(self.bridge.finish(request), request.handles)
        yield GenerationChunk(text="", generation_info={CALL_KEY: metadata})

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        request, params = await asyncio.to_thread(self._open, prompt, stop, kwargs, stream=True)
        request.start()
        async with await self.async_client.create(**params) as events:
            async for event in events:
                chunk = _chunk(request, event.model_dump())
                if chunk is None:
                    continue
                if run_manager:
                    await run_manager.on_llm_new_token(
                        chunk.text, chunk=chunk, verbose=self.verbose
                    )
                yield chunk
        metadata = report_metadata(await self.bridge.afinish(request), request.handles)
        yield GenerationChunk(text="", generation_info={CALL_KEY: metadata})


def _chunk(request: BridgedRequest, event: Mapping[str, Any]) -> GenerationChunk | None:
    """One event of a stream as a chunk, ``None`` for the one that only counts."""
    if event.get("usage"):
        request.count(event["usage"])
    choices = event.get("choices") or []
    if not choices:
        return None
    choice = choices[0]
    if choice.get("text"):
        request.spoke()
    # Infos of chunks are added up: what is not known yet must not be in them.
    said = {name: choice.get(name) for name in ("finish_reason", "logprobs")}
    info = {name: value for name, value in said.items() if value is not None}
    return GenerationChunk(text=choice.get("text") or "", generation_info=info or None)
