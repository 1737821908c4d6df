"""What a vLLM server says beyond the OpenAI protocol; the base class drops it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult

__all__ = ["dumped", "keep_chunk_extras", "keep_extras"]

_KNOWN_RESPONSE = frozenset(
    {
        "choices", "created", "error", "id", "metadata", "model", "moderation", "object",
        "service_tier", "system_fingerprint", "usage",
    }
)  # fmt: skip
_KNOWN_CHOICE = frozenset({"delta", "finish_reason", "index", "logprobs", "message", "text"})
PROVIDER = "inferscale"
"""In place of ``openai``, whose content blocks know no ``reasoning_content``."""
_REASONING = ("reasoning_content", "reasoning")


def dumped(response: openai.BaseModel) -> dict[str, Any]:
    """A response as plain values, without what structured output was parsed into."""
    values: dict[str, Any] = response.model_dump(
        exclude={"choices": {"__all__": {"message": {"parsed"}}}}, warnings=False
    )
    return values


def keep_extras(result: ChatResult, response: Mapping[str, Any]) -> None:
    """Further fields of a whole response: into ``response_metadata``; reasoning to the message."""
    said = _extra(response, _KNOWN_RESPONSE)
    result.llm_output = {**(result.llm_output or {}), **said, "model_provider": PROVIDER}
    for generation, choice in zip(result.generations, response["choices"], strict=True):
        generation.generation_info = {
            **(generation.generation_info or {}),
            **_extra(choice, _KNOWN_CHOICE),
        }
        _keep_reasoning(generation.message, choice.get("message") or {})


def keep_chunk_extras(generation: ChatGenerationChunk, chunk: Mapping[str, Any]) -> None:
    """The same for one chunk of a stream."""
    if "model_provider" in generation.message.response_metadata:
        generation.message.response_metadata["model_provider"] = PROVIDER
    for choice in (chunk.get("choices") or [])[:1]:
        if extra := _extra(choice, _KNOWN_CHOICE):
            generation.generation_info = {**(generation.generation_info or {}), **extra}
        _keep_reasoning(generation.message, choice.get("delta") or {})


def _extra(said: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if value is not None and key not in known}


def _keep_reasoning(message: Any, said: Mapping[str, Any]) -> None:
    # vLLM calls it ``reasoning``, earlier releases and other servers ``reasoning_content``, which
    # is what LangChain's content blocks are made from.
    text = next((said[name] for name in _REASONING if said.get(name)), None)
    if text and isinstance(message, AIMessage | AIMessageChunk):
        message.additional_kwargs["reasoning_content"] = text
