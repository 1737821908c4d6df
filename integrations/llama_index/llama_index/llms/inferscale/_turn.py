"""One call of the model: what goes out, and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse

from inferscale_sdk import ConfigurationError, InjectionReport
from inferscale_sdk.bridge import ID_NAMES, BridgedRequest, Ids, merge_ids, object_ids
from inferscale_sdk.bridge import report_metadata as _report_metadata

__all__ = ["CALL_KEY", "Turn", "attached_handles", "has_usage", "split_call", "worth_a_retry"]

CALL_KEY = "inferscale"
"""Keyword of a call (``chat(…, inferscale={"user_id": …, "handles": […]})``), key of handles in a
message's ``additional_kwargs``, and of the report in a response."""

Response = TypeVar("Response", ChatResponse, CompletionResponse)


@dataclass(slots=True)
class Turn:
    """A prepared call.

    Args:
        request: The bridge's side.
        kwargs: The caller's arguments, for the client of openai.
    """

    request: BridgedRequest
    kwargs: dict[str, Any]

    def sent(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the request; ``body`` goes over what the client would write itself."""
        return {**self.kwargs, "extra_body": dict(body)}

    def with_report(self, response: Response, report: InjectionReport) -> Response:
        """``response`` with what became of the memory, in both places where people look."""
        values = _report_metadata(report, self.request.handles)
        response.additional_kwargs[CALL_KEY] = values
        if isinstance(response.raw, openai.BaseModel):
            # The client's models take further fields, and dump them.
            setattr(response.raw, CALL_KEY, values)
        return response


def split_call(owner: object, kwargs: Mapping[str, Any]) -> tuple[Ids, list[str], dict[str, Any]]:
    """Whose memory, the handles given with the call, and the other arguments.

    Raises:
        ConfigurationError: ``inferscale`` holds something unknown.
        NamespaceError: The call names another user than the constructor.
    """
    rest = dict(kwargs)
    ours = dict(rest.pop(CALL_KEY, None) or {})
    unknown = sorted(ours.keys() - {*ID_NAMES, "handles"})
    if unknown:
        raise ConfigurationError(
            f"inferscale={{…}} of a call has {unknown}; known are {[*ID_NAMES, 'handles']}"
        )
    ids = merge_ids(object_ids(owner), object_ids(ours))
    return ids, [str(handle) for handle in _listed(ours.get("handles"))], rest


def attached_handles(messages: Iterable[ChatMessage]) -> list[str]:
    """Handles that ride beside the text of messages, the newest first."""
    return [
        str(handle)
        for message in reversed(list(messages))
        for handle in _listed(message.additional_kwargs.get(CALL_KEY))
    ]


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return list(value) if isinstance(value, list | tuple) else [value]


def worth_a_retry(request: BridgedRequest, error: openai.APIStatusError) -> bool:
    """Whether the same prompt without injection may succeed."""
    injects = request.plan is not None and bool(request.plan.segments)
    return injects and (error.status_code >= 500 or error.status_code in (400, 422))


def has_usage(raw: Any) -> Mapping[str, Any] | None:
    """The usage object of a response or chunk, if it has one."""
    usage = getattr(raw, "usage", None)
    return usage.model_dump() if isinstance(usage, openai.BaseModel) else None
