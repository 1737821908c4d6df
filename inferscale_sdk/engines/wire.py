"""Requests and answers of a vLLM server as plain values. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import ConfigurationError, EngineError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.protocol import (
    FIELD,
    EncodeAnswer,
    ForgetAnswer,
    InjectAnswer,
    LocateAnswer,
    Operation,
    PingAnswer,
    PrefetchAnswer,
    ProbeVerdict,
    Refusal,
    StatsAnswer,
    sign,
)
from inferscale_sdk.types import InjectionReport, InjectionStatus, Message

__all__ = [
    "Usage",
    "answer_of",
    "build_report",
    "chat_body",
    "control_body",
    "transfer_fields",
    "wire_messages",
    "without_segments",
]

JSONObject = dict[str, Any]
Answer = TypeVar(
    "Answer",
    EncodeAnswer,
    ForgetAnswer,
    InjectAnswer,
    LocateAnswer,
    PingAnswer,
    PrefetchAnswer,
    ProbeVerdict,
    StatsAnswer,
)

# What the exact tokens replace; the server's parsers still want a conversation.
_PLACEHOLDER = [{"role": "user", "content": "."}]
_OURS = frozenset(
    {"cache_salt", "kv_transfer_params", "messages", "model", "n", "prompt", "stream"}
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them.

    Args:
        prompt_tokens: Of the prompt.
        completion_tokens: Of the answer.
        cached_tokens: Prompt tokens that were not computed, whether found in vLLM's own cache or
            injected; ``None`` if the server does not tell.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Usage:
        """Read ``response["usage"]``; zeros without one."""
        usage = response.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return cls(
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cached_tokens=details.get("cached_tokens"),
        )


def control_body(
    model: str,
    op: Operation,
    token_ids: Sequence[int],
    *,
    salt: str,
    secret: bytes | None,
    max_tokens: int = 1,
) -> JSONObject:
    """A completion request that exists for the sake of ``op``.

    What the workers do is known to the connector in the step after the prompt was computed, so
    operations that need them are answered on requests of two tokens.
    """
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        # An end token in the first step would end the request before it is answered.
        "ignore_eos": True,
        "cache_salt": salt,
        "kv_transfer_params": {FIELD: _object(op, token_ids, secret)},
    }


def transfer_fields(plan: PromptPlan, *, op: Operation | None, secret: bytes | None) -> JSONObject:
    """The fields by which a chat request carries a plan: exact tokens, operation and salt.

    Args:
        plan: The prompt.
        op: The operation that rides along.
        secret: The server's secret.
    """
    transfer: JSONObject = {"prompt_token_ids": list(plan.token_ids)}
    if op is not None:
        transfer[FIELD] = _object(op, plan.token_ids, secret)
    fields: JSONObject = {"kv_transfer_params": transfer}
    if plan.cache_salt:
        fields["cache_salt"] = plan.cache_salt
    return fields


def wire_messages(plan: PromptPlan, *, in_full: bool) -> list[JSONObject]:
    """The ``messages`` of a chat request.

    Args:
        plan: The prompt.
        in_full: The conversation itself, with the memory as text, for a server that may not take
            exact tokens. Otherwise a placeholder, which the tokens replace.
    """
    if not (in_full and plan.messages):
        return [dict(message) for message in _PLACEHOLDER]
    return [_wire_message(message) for message in plan.messages]


def chat_body(
    model: str,
    sampling: Sampling,
    *,
    fields: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    stream: bool,
) -> JSONObject:
    """A whole chat request.

    Args:
        model: Name of the served model.
        sampling: How to sample.
        fields: As :func:`transfer_fields` makes them.
        messages: As :func:`wire_messages` makes them.
        stream: Whether to stream.

    Raises:
        ConfigurationError: ``sampling.extra`` sets a field that belongs to the engine.
    """
    taken = sorted(_OURS & sampling.extra.keys())
    if taken:
        raise ConfigurationError(
            f"Sampling.extra sets {taken}, which the engine sets itself; leave them out"
        )
    body: JSONObject = {
        "model": model,
        "messages": list(messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **fields,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {**body, **sampling.extra}


def without_segments(plan: PromptPlan) -> PromptPlan:
    """The same tokens as a plain text request, under the namespace's plain salt.

    Blocks computed as text and blocks behind injected ones are never found under one salt.
    """
    if not plan.segments:
        return plan
    salt = plan.cache_salt.rsplit(":", 1)[0] + ":text" if plan.cache_salt else ""
    return replace(plan, segments=(), cache_salt=salt)


def answer_of(response: Mapping[str, Any], kind: type[Answer]) -> Answer | Refusal | None:
    """The connector's answer in a response, ``None`` if it holds none.

    Raises:
        EngineError: It is not an answer of the protocol.
    """
    obj = (response.get("kv_transfer_params") or {}).get(FIELD)
    if obj is None:
        return None
    refused = isinstance(obj, Mapping) and obj.get("op") == "refused"
    try:
        return Refusal.model_validate(obj) if refused else kind.model_validate(obj)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EngineError(
            f"the server's answer is not of this protocol: {first['loc']} {first['msg']}; "
            "install the same inferscale-sdk on both sides"
        ) from None


def build_report(
    plan: PromptPlan,
    usage: Usage,
    answer: InjectAnswer | Refusal | None,
    *,
    reason: str = "",
    ttft_ms: float | None = None,
) -> InjectionReport:
    """What became of the memory of one request.

    With the connector's answer the counts are the server's. Without one, as in a stream, tokens
    that were not computed count as injected as far as the plan's segments reach.

    Args:
        plan: What was asked for, with segments even if they were not sent.
        usage: The server's token counts.
        answer: What the connector said.
        reason: Why nothing was injected, if that was known before.
        ttft_ms: Time to first token.
    """
    prompt_tokens = len(plan.token_ids)
    planned = min(sum(segment.n_tokens for segment in plan.segments), prompt_tokens - 1)
    cached_total = min(usage.cached_tokens or 0, prompt_tokens)
    missing: tuple[str, ...] = ()
    if isinstance(answer, InjectAnswer):
        # A one-token answer is over before the worker has reported; then the claim counts.
        loaded = answer.claimed_tokens if answer.loaded_tokens is None else answer.loaded_tokens
        injected = min(loaded, prompt_tokens)
        cached = min(answer.local_tokens, prompt_tokens - injected)
        missing, reason = answer.missing_keys, answer.reason.value
    elif isinstance(answer, Refusal):
        injected, cached = 0, cached_total
        reason = ": ".join(filter(None, (answer.reason.value, answer.message)))
    else:
        injected = 0 if reason else min(cached_total, planned)
        cached = cached_total - injected
    return InjectionReport(
        status=_status(plan, answer, planned, injected, cached, refused=bool(reason)),
        reason=reason,
        prompt_tokens=prompt_tokens,
        memory_tokens=plan.memory_tokens,
        injected_tokens=injected,
        cached_tokens=cached,
        prefilled_tokens=prompt_tokens - injected - cached,
        fact_ids=plan.fact_ids,
        missing_keys=missing,
        ttft_ms=ttft_ms,
    )


def _status(
    plan: PromptPlan,
    answer: InjectAnswer | Refusal | None,
    planned: int,
    injected: int,
    cached: int,
    *,
    refused: bool,
) -> InjectionStatus:
    if not plan.fact_ids:
        return InjectionStatus.NONE
    if not plan.segments or isinstance(answer, Refusal) or (answer is None and refused):
        return InjectionStatus.TEXT
    if injected + cached >= planned:
        return InjectionStatus.INJECTED
    return InjectionStatus.PARTIAL if injected + cached else InjectionStatus.TEXT


def _object(op: Operation, token_ids: Sequence[int], secret: bytes | None) -> JSONObject:
    signed = sign(op, token_ids, secret) if secret else op
    return signed.model_dump(mode="json", exclude_none=True)


def _wire_message(message: Message | Mapping[str, Any]) -> JSONObject:
    if isinstance(message, Message):
        named = {"name": message.name} if message.name else {}
        return {"role": message.role, "content": message.content, **named}
    if not message.get("tool_calls"):
        return dict(message)
    return {**message, "tool_calls": [_wire_call(call) for call in message["tool_calls"]]}


def _wire_call(call: Mapping[str, Any]) -> JSONObject:
    """A tool call with its arguments as JSON text; chat templates want them as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return dict(call)
    return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"))}}
