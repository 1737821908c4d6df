"""The end of a stream: usage and report are known only then."""

from __future__ import annotations

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk

from inferscale_sdk import InjectionReport
from inferscale_sdk.bridge import BridgedRequest
from langchain_inferscale._turn import with_report

__all__ = ["StreamTail"]


class StreamTail:
    """Passes chunks on and holds the usage back until the report corrects it.

    Chunks are added up by whoever listens: a usage that was passed on could not be taken back.

    Args:
        request: The bridge's side of the call.
    """

    def __init__(self, request: BridgedRequest) -> None:
        self._request = request
        self._usage: UsageMetadata | None = None

    def pass_on(self, chunk: ChatGenerationChunk) -> ChatGenerationChunk | None:
        """The chunk without its usage, ``None`` if there was nothing else in it."""
        message = chunk.message
        if not isinstance(message, AIMessageChunk):
            return chunk
        if message.content or message.tool_call_chunks or message.additional_kwargs:
            self._request.spoke()
        if message.usage_metadata is None:
            return chunk
        self._usage = message.usage_metadata
        message.usage_metadata = None
        bare = not (message.content or message.tool_call_chunks or message.additional_kwargs)
        return None if bare and not chunk.generation_info else chunk

    def count(self) -> None:
        """Tell the bridge what the server counted."""
        if self._usage is None:
            return
        details = self._usage.get("input_token_details") or {}
        self._request.count(
            {
                "prompt_tokens": self._usage["input_tokens"],
                "completion_tokens": self._usage["output_tokens"],
                "prompt_tokens_details": {"cached_tokens": details.get("cache_read")},
            }
        )

    def last(self, report: InjectionReport) -> ChatGenerationChunk:
        """The last chunk: usage and report."""
        message = AIMessageChunk(content="", usage_metadata=self._usage)
        with_report(message, report, self._request)
        return ChatGenerationChunk(message=message)
