"""``InferScaleMemoryBlock``: long-term facts for LlamaIndex's own ``Memory``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.memory import BaseMemoryBlock
from llama_index.memory.inferscale._binding import Binding
from llama_index.memory.inferscale._recall import (
    TURN_KEY,
    Recall,
    guarded,
    last_user_text,
    turn_digest,
    worth_remembering,
)

from inferscale_sdk import AsyncMemory, Memory, Namespace
from inferscale_sdk.bridge import Ids, merge_ids, object_ids

__all__ = ["InferScaleMemoryBlock"]

SESSION_KEY = "session_id"
"""Under which ``Memory`` tells a block where a message was said."""


class InferScaleMemoryBlock(BaseMemoryBlock[list[ChatMessage]]):
    """A block of ``llama_index.core.memory.Memory`` that recalls facts.

    ``Memory`` hands a block the messages that leave its short-term queue; they are remembered.
    When the chat is read, the block gives handles of what matters for the user's last message.

        block = InferScaleMemoryBlock(core, user_id="alice")
        Memory.from_defaults(session_id="s1", memory_blocks=[block])

    One block serves any number of sessions: where a message was said comes with the message.
    What is recalled stands in a message of its own before the others, which every engine and
    agent passes on.

    Args:
        memory: Where facts are; by default the process's own.
        **kwargs: The fields of this class.
    """

    name: str = Field(default="inferscale", description="Name of the block.")
    user_id: str | None = Field(default=None, description="Whose memory.")
    agent_id: str | None = Field(default=None, description="Of which agent.")
    app_id: str | None = Field(default=None, description="Of which application.")
    recall_from: Literal["user", "session"] = Field(
        default="user", description="Facts of all the user's sessions, or of the current one only."
    )
    top_k: int = Field(default=20, ge=1, description="Facts recalled at most.")
    mode: Literal["handle", "text"] = Field(default="handle", description="What the model gets.")
    filters: Mapping[str, Any] | None = Field(default=None, description="Metadata conditions.")
    threshold: float | None = Field(default=None, description="Least cosine similarity.")
    remember_roles: tuple[str, ...] = Field(
        default=("user", "assistant"), description="Whose turns are remembered as facts."
    )
    on_error: Literal["text", "raise"] = Field(
        default="text", description="A failure of recall: go on without, or raise."
    )
    store: str | None = Field(default=None, description="Which store, in serialised form.")

    _binding: Binding = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | None = None, **kwargs: Any) -> None:
        binding = Binding(memory, kwargs.get("store"))
        super().__init__(**{**kwargs, "store": binding.store})
        self._binding = binding
        Namespace(**self._ids(None))

    @property
    def memory(self) -> Memory:
        """Where facts are."""
        return self._binding.memory

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **block_kwargs: Any
    ) -> list[ChatMessage]:
        session = block_kwargs.get(SESSION_KEY) if self.recall_from == "session" else None
        recall = Recall(self.top_k, self.mode, self.filters, self.threshold, self._ids(session))
        said = messages or []
        found = await asyncio.to_thread(
            guarded,
            "recall failed, the chat goes on without",
            self.on_error,
            lambda: recall.text(self.memory, last_user_text(said), said),
            "",
        )
        if not found:
            return []
        # A system message would be dropped by ReActAgent when it has no prompt of its own.
        role = MessageRole.USER if self.mode == "handle" else MessageRole.SYSTEM
        return [ChatMessage(role=role, content=found)]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await asyncio.to_thread(
            guarded,
            "turns could not be remembered",
            self.on_error,
            lambda: self._remember(messages),
            None,
        )

    def _remember(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            turn = worth_remembering(message, self.remember_roles)
            if turn is not None:
                self.memory.add(
                    turn,
                    metadata={TURN_KEY: turn_digest(message)},
                    **self._ids(message.additional_kwargs.get(SESSION_KEY)),
                )

    def _ids(self, session_id: str | None) -> Ids:
        return merge_ids(object_ids(self), {"run_id": session_id})
