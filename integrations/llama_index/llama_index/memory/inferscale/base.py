"""``InferScaleMemory``: short-term messages and long-term facts for chat engines and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr, field_serializer
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import BaseChatStoreMemory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.storage.chat_store.loading import load_chat_store
from llama_index.core.utils import get_tokenizer
from llama_index.memory.inferscale._binding import Binding
from llama_index.memory.inferscale._recall import (
    TURN_KEY,
    InsertMethod,
    Recall,
    guarded,
    last_user_text,
    turn_digest,
    with_text,
    worth_remembering,
)
from llama_index.memory.inferscale._window import recent

from inferscale_sdk import AsyncMemory, ConfigurationError, Memory, Namespace
from inferscale_sdk.bridge import Ids, merge_ids, object_ids

__all__ = ["InferScaleMemory"]

DEFAULT_TOKEN_LIMIT = 3000
DEFAULT_TOP_K = 20
_HISTORY_SHARE = 0.5
_PAGE = 200


class InferScaleMemory(BaseChatStoreMemory):
    """Remembers what was said, and gives the model handles of what matters now.

    ``put`` keeps a message for this session and remembers it as a fact; no model is called, and
    nothing is computed before it returns. ``get`` returns the session's recent messages, with
    handles of the facts recalled for what the user said last. Facts of every session of the user
    count, whichever session this object is for.

        memory = InferScaleMemory(core, user_id="alice")
        SimpleChatEngine.from_defaults(llm=InferScaleLLM(core, user_id="alice"), memory=memory)

    Args:
        memory: Where facts are; by default the process's own.
        **kwargs: The fields of this class.
    """

    user_id: str | None = Field(default=None, description="Whose memory.")
    agent_id: str | None = Field(default=None, description="Of which agent.")
    app_id: str | None = Field(default=None, description="Of which application.")
    session_id: str = Field(
        default_factory=lambda: uuid4().hex, description="Under which new facts are filed."
    )
    recall_from: Literal["user", "session"] = Field(
        default="user", description="Facts of all the user's sessions, or of this one only."
    )
    top_k: int = Field(default=DEFAULT_TOP_K, ge=1, description="Facts recalled at most.")
    mode: Literal["handle", "text"] = Field(
        default="handle", description="What the model is given; text for other models."
    )
    insert_method: InsertMethod = Field(
        default="user",
        description="Before the user's last message, or as a system message, which ReActAgent "
        "drops when it has no system prompt of its own.",
    )
    filters: Mapping[str, Any] | None = Field(default=None, description="Metadata conditions.")
    threshold: float | None = Field(default=None, description="Least cosine similarity.")
    remember_roles: tuple[str, ...] = Field(
        default=("user", "assistant"), description="Whose turns are remembered as facts."
    )
    token_limit: int = Field(
        default=DEFAULT_TOKEN_LIMIT, ge=1, description="Tokens of short-term messages at most."
    )
    on_error: Literal["text", "raise"] = Field(
        default="text", description="A failure of recall: go on without, or raise."
    )
    store: str | None = Field(default=None, description="Which store, in serialised form.")
    tokenizer_fn: Callable[[str], list[Any]] = Field(
        default_factory=get_tokenizer, exclude=True, description="Counts short-term tokens."
    )

    _binding: Binding = PrivateAttr()

    def __init__(self, memory: Memory | AsyncMemory | None = None, **kwargs: Any) -> None:
        binding = Binding(memory, kwargs.get("store"))
        super().__init__(**{**kwargs, "store": binding.store})
        self._binding = binding
        # Checked here, not at the first message.
        self._namespace()
        if "chat_store_key" not in self.model_fields_set:
            # Two users may have sessions of one name in a chat store they share.
            self.chat_store_key = self._namespace().canonical()

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised form."""
        return "InferScaleMemory"

    @classmethod
    def from_defaults(
        cls,
        chat_history: list[ChatMessage] | None = None,
        llm: LLM | None = None,
        *,
        memory: Memory | AsyncMemory | None = None,
        chat_store: BaseChatStore | None = None,
        token_limit: int | None = None,
        **kwargs: Any,
    ) -> InferScaleMemory:
        """A memory with defaults that suit a model.

        Args:
            chat_history: What was said before in this session.
            llm: By default half of its context is for short-term messages, and its memory is used.
            memory: Where facts are.
            chat_store: Where short-term messages are.
            token_limit: Tokens of short-term messages at most.
            **kwargs: Other fields of the class.
        """
        bridge = getattr(llm, "bridge", None)
        if memory is None and bridge is not None:
            memory = bridge.memory
        if token_limit is None and llm is not None:
            token_limit = max(int(llm.metadata.context_window * _HISTORY_SHARE), 1)
        made = cls(
            memory,
            chat_store=chat_store or SimpleChatStore(),
            token_limit=token_limit or DEFAULT_TOKEN_LIMIT,
            **kwargs,
        )
        if chat_history:
            made.set(chat_history)
        return made

    @property
    def memory(self) -> Memory:
        """Where facts are."""
        return self._binding.memory

    def bind(self, memory: Memory | AsyncMemory) -> None:
        """Take up the store of a memory that was restored in another process.

        Raises:
            ConfigurationError: It is another store.
        """
        binding = Binding(memory, None)
        if self.store is not None and binding.store != self.store:
            raise ConfigurationError(
                f"this memory belongs to the store {self.store}, the one given is {binding.store}"
            )
        self._binding = binding

    # -- serialised form -------------------------------------------------------------------

    @field_serializer("chat_store")
    def serialize_courses_in_order(self, chat_store: BaseChatStore) -> dict[str, Any]:
        """The chat store; overrides the base class, whose way fails with pydantic 2.14."""
        if type(chat_store) is not SimpleChatStore:
            return {**chat_store.model_dump(), "class_name": chat_store.class_name()}
        store = {
            key: [message.model_dump(mode="json") for message in messages]
            for key, messages in chat_store.store.items()
        }
        return {"store": store, "class_name": chat_store.class_name()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> InferScaleMemory:
        """What :meth:`to_dict` gave, with the store that this process has open."""
        values = {**data, **kwargs}
        values.pop("class_name", None)
        if isinstance(values.get("chat_store"), dict):
            values["chat_store"] = load_chat_store(dict(values["chat_store"]))
        return cls(**values)

    # -- reading ---------------------------------------------------------------------------

    def get(
        self,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        **kwargs: Any,
    ) -> list[ChatMessage]:
        """The session's recent messages, with handles of what matters now.

        Args:
            input: What the user says, if it was not put yet; otherwise the last user message
                counts, as agents and simple chat engines ask without.
            initial_token_count: Tokens that stand before these messages.
            **kwargs: Other engines' arguments; not used.
        """
        asked = input.content or "" if isinstance(input, ChatMessage) else input or ""
        # Deep copies: agents write their state into the messages they are given.
        history = [
            message.model_copy(deep=True)
            for message in recent(
                self.get_all(), self.token_limit - initial_token_count, self.tokenizer_fn
            )
        ]
        query = asked if asked.strip() else last_user_text(history)
        recall = Recall(
            self.top_k, self.mode, self.filters, self.threshold, self._ids(self.recall_from)
        )
        found = guarded(
            "recall failed, the chat goes on without",
            self.on_error,
            lambda: recall.text(self.memory, query, history),
            "",
        )
        return self._insert(found, history) if found else history

    async def aget(
        self,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        **kwargs: Any,
    ) -> list[ChatMessage]:
        """Async twin of :meth:`get`: store and embedder work in a thread."""
        return await asyncio.to_thread(self.get, input, initial_token_count, **kwargs)

    def _insert(self, found: str, history: list[ChatMessage]) -> list[ChatMessage]:
        if self.insert_method == "user":
            for i in range(len(history) - 1, -1, -1):
                if history[i].role == MessageRole.USER:
                    history[i] = with_text(history[i], found)
                    return history
            return [ChatMessage(role=MessageRole.USER, content=found), *history]
        if history and history[0].role == MessageRole.SYSTEM:
            return [with_text(history[0], found), *history[1:]]
        return [ChatMessage(role=MessageRole.SYSTEM, content=found), *history]

    # -- writing ---------------------------------------------------------------------------

    def put(self, message: ChatMessage) -> None:
        """Keep a message and remember it."""
        self.put_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Keep messages and remember them, in order."""
        for message in messages:
            self.chat_store.add_message(self.chat_store_key, message)
        self._remember(messages)

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace the session's messages.

        Those that are new are remembered; applications hand in the whole conversation with every
        turn, so what the user's memory has already is not stored again.
        """
        self.chat_store.set_messages(self.chat_store_key, list(messages))
        self._remember(messages, known=self._remembered)

    def reset(self) -> None:
        """Drop the session's messages. Facts stay: ``memory.delete_all`` forgets them."""
        self.chat_store.delete_messages(self.chat_store_key)

    async def aget_all(self) -> list[ChatMessage]:
        """Async twin of :meth:`get_all`."""
        return await asyncio.to_thread(self.get_all)

    async def aput(self, message: ChatMessage) -> None:
        """Async twin of :meth:`put`."""
        await asyncio.to_thread(self.put, message)

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Async twin of :meth:`put_messages`."""
        await asyncio.to_thread(self.put_messages, messages)

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Async twin of :meth:`set`."""
        await asyncio.to_thread(self.set, messages)

    async def areset(self) -> None:
        """Async twin of :meth:`reset`."""
        await asyncio.to_thread(self.reset)

    def _remember(
        self,
        messages: Sequence[ChatMessage],
        known: Callable[[list[str]], frozenset[str]] | None = None,
    ) -> None:
        turns = [
            (turn_digest(message), turn)
            for message in messages
            if (turn := worth_remembering(message, self.remember_roles)) is not None
        ]

        def store() -> None:
            there = known([digest for digest, _ in turns]) if known is not None else frozenset()
            for digest, turn in turns:
                if digest not in there:
                    self.memory.add(turn, metadata={TURN_KEY: digest}, **self._ids("session"))

        guarded("a turn could not be remembered", self.on_error, store, None)

    def _remembered(self, digests: list[str]) -> frozenset[str]:
        """Which of these turns the user's memory has, in whatever session."""
        found: list[str] = []
        for i in range(0, len(digests), _PAGE):
            page = digests[i : i + _PAGE]
            facts = self.memory.get_all(filters={TURN_KEY: {"in": page}}, **self._ids("user"))
            found += [str(fact.metadata[TURN_KEY]) for fact in facts]
        return frozenset(found)

    def _ids(self, scope: str) -> Ids:
        # Read at every call: an application may move on to another session.
        session = {"run_id": self.session_id} if scope == "session" else {}
        return merge_ids(object_ids(self), session)

    def _namespace(self) -> Namespace:
        return Namespace(**self._ids("session"))
