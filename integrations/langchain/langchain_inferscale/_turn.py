"""One call of a model wrapper: the payload it sends and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import InputTokenDetails

from inferscale_sdk import ConfigurationError, InjectionReport
from inferscale_sdk.bridge import BridgedRequest, deep_merge, has_markers, report_metadata
from langchain_inferscale._scope import ID_NAMES, Ids, config_ids, merge_ids, object_ids
from langchain_inferscale.documents import HANDLE_KEY

__all__ = [
    "CALL_KEY",
    "TURN_KEY",
    "Turn",
    "attached_handles",
    "call_ids",
    "is_worth_a_retry",
    "split_call",
    "with_config",
    "with_report",
]

CALL_KEY = "inferscale"
"""Keyword of a call (``invoke(…, inferscale={"user_id": …, "handles": […]})``), and the name under
which handles ride in a message's ``additional_kwargs``."""
TURN_KEY = "_inferscale_turn"
"""Keyword under which a prepared turn reaches the payload hook of the base class."""


@dataclass(slots=True)
class Turn:
    """A prepared call.

    Args:
        request: The bridge's side.
        asked: Keyword arguments for the client of openai, as the application wants them.
    """

    request: BridgedRequest
    asked: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """The arguments with what the request carries laid over them."""
        body = deep_merge(self.asked.get("extra_body"), self.request.extra_body)
        sent = {**self.asked, "messages": self.request.messages}
        if body:
            sent["extra_body"] = body
        return sent


def split_call(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a call that are ours, and the others.

    Raises:
        ConfigurationError: ``inferscale`` holds something unknown.
    """
    rest = dict(kwargs)
    ours = dict(rest.pop(CALL_KEY, None) or {})
    unknown = sorted(ours.keys() - {*ID_NAMES, "handles"})
    if unknown:
        raise ConfigurationError(
            f"inferscale={{…}} of a call has {unknown}; known are {[*ID_NAMES, 'handles']}"
        )
    for name in ("user_id", "agent_id", "app_id"):
        if name in rest:
            value = rest.pop(name)
            ours.update(merge_ids(object_ids(ours), {name: value}))
    return ours, rest


def with_config(config: Mapping[str, Any] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call with what its run configuration says, which models never see.

    ``configurable`` may hold ids, and ``inferscale`` with ids and handles. As arguments of the
    call they are part of the answer cache's key.
    """
    configured = dict(((config or {}).get("configurable") or {}).get(CALL_KEY) or {})
    ids = merge_ids(configured, config_ids(config))
    if not (ids or configured):
        return kwargs
    ours, rest = split_call(kwargs)
    handles = [*_listed(ours.get("handles")), *_listed(configured.get("handles"))]
    return {
        **rest,
        CALL_KEY: {**merge_ids(ours, ids), **({"handles": handles} if handles else {})},
    }


def call_ids(owner: object, kwargs: Mapping[str, Any], run: Ids) -> Ids:
    """Whose memory a call is about: constructor, call and run must not contradict each other."""
    return merge_ids(object_ids(owner), split_call(kwargs)[0], run)


def attached_handles(messages: Iterable[BaseMessage], given: Any = ()) -> list[str]:
    """Handles that ride beside the text; those given with the call first, then the newest.

    Frameworks keep them in ``additional_kwargs`` (middleware, history), and tools return documents
    as artifacts when their text says something else.
    """
    handles = [str(handle) for handle in _listed(given)]
    for message in reversed(list(messages)):
        handles += [str(handle) for handle in _listed(message.additional_kwargs.get(CALL_KEY))]
        if isinstance(message, ToolMessage):
            handles += _artifact_handles(message.artifact)
    return handles


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return [value] if isinstance(value, str) else list(value)


def _artifact_handles(artifact: Any) -> list[str]:
    documents = artifact if isinstance(artifact, list | tuple) else [artifact]
    return [
        document.metadata[HANDLE_KEY]
        for document in documents
        # A document that gave the model its text must not come in a second time.
        if has_markers(getattr(document, "page_content", ""))
        and isinstance(document.metadata.get(HANDLE_KEY), str)
    ]


def with_report(message: AIMessage, report: InjectionReport, request: BridgedRequest) -> None:
    """Put into ``message`` what became of the memory."""
    message.response_metadata[CALL_KEY] = report_metadata(report, request.handles)
    usage = message.usage_metadata
    if usage is not None:
        details: InputTokenDetails = {**(usage.get("input_token_details") or {})}
        # Tokens from vLLM's own prefix cache are in the report; these are the memory's.
        details["cache_read"] = report.injected_tokens
        usage["input_token_details"] = details


def is_worth_a_retry(error: openai.APIStatusError) -> bool:
    """Whether the same prompt without injection may succeed."""
    return error.status_code >= 500 or error.status_code in (400, 422)
