"""``InferScaleMemory``: the classic chains' memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import ConfigDict, Field, PrivateAttr

from inferscale_sdk import Memory, MissingDependency
from langchain_inferscale._scope import Ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of

try:
    from langchain_classic.base_memory import BaseMemory
except ImportError as error:
    raise MissingDependency("langchain-classic", "classic", "InferScaleMemory") from error

__all__ = ["InferScaleMemory"]

_INPUTS = ("input", "question", "query", "human_input")
_OUTPUTS = ("response", "answer", "output", "result", "text", "output_text")


class InferScaleMemory(BaseMemory):
    """Remembers both sides of every turn, and recalls what matters for the next.

    Drops into ``ConversationChain(llm=ChatInferScale(…), memory=InferScaleMemory(user_id=…))`` and
    other classic chains, or into LCEL as
    ``RunnablePassthrough.assign(history=RunnableLambda(memory.load_memory_variables) | …)``. It
    puts into the prompt one line of handles and the most recent turns as they were said.

    Args:
        memory: Where facts are kept; by default the process's own memory.
        user_id: Whose memory, if this object serves one user only.
        agent_id: Of which agent.
        run_id: Of which session.
        app_id: Of which application.
        memory_key: The prompt's variable.
        input_key: Which of several inputs is the user's message.
        output_key: Which of several outputs is the answer.
        return_messages: Give messages, for chat prompts, instead of one string.
        top_k: Facts recalled at most.
        recent_turns: Turns that stand in the prompt word for word; they are not recalled as well.
        human_prefix: Before the user's lines in the string form.
        ai_prefix: Before the answers' lines in the string form.
    """

    memory: Any = Field(default=None, exclude=True, repr=False)
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    app_id: str | None = None
    memory_key: str = "history"
    input_key: str | None = None
    output_key: str | None = None
    return_messages: bool = False
    top_k: int = 20
    recent_turns: int = Field(default=3, ge=0)
    human_prefix: str = "Human"
    ai_prefix: str = "AI"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _recent: dict[str, deque[_Turn]] = PrivateAttr(default_factory=dict)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @property
    def memory_variables(self) -> list[str]:
        """The prompt's variable."""
        return [self.memory_key]

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Handles of what matters for the input, and the recent turns."""
        ids = self._ids()
        turns = self._turns(ids)
        query = _text(self._input(inputs, required=False))
        markers = self._recall(query, ids, {fact for turn in turns for fact in turn.fact_ids})
        if self.return_messages:
            return {self.memory_key: _as_messages(markers, turns)}
        lines = [" ".join(markers)] if markers else []
        for turn in turns:
            lines += [f"{self.human_prefix}: {turn.said}", f"{self.ai_prefix}: {turn.answered}"]
        return {self.memory_key: "\n".join(lines)}

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Remember both sides of the turn.

        Raises:
            ValueError: There are several inputs or outputs and nothing says which is meant.
        """
        ids = self._ids()
        said = _text(self._input(inputs, required=True))
        answered = _text(_chosen(outputs, self.output_key, _OUTPUTS, "output_key"))
        facts = _memory(self).add(
            [{"role": "user", "content": said}, {"role": "assistant", "content": answered}], **ids
        )
        if self.recent_turns:
            turn = _Turn(said, answered, tuple(fact.id for fact in facts))
            with self._lock:
                recent = self._recent.setdefault(_key(ids), deque(maxlen=self.recent_turns))
                recent.append(turn)

    def clear(self) -> None:
        """Forget everything of this namespace."""
        ids = self._ids()
        _memory(self).delete_all(**ids)
        with self._lock:
            self._recent.pop(_key(ids), None)

    # -- inside ----------------------------------------------------------------------------

    def _ids(self) -> Ids:
        return merge_ids(object_ids(self), run_ids())

    def _turns(self, ids: Ids) -> list[_Turn]:
        with self._lock:
            return list(self._recent.get(_key(ids), ()))

    def _recall(self, query: str, ids: Ids, shown: set[str]) -> list[str]:
        found = _memory(self).search(query, top_k=self.top_k + len(shown), **ids)
        kept = [scored for scored in found if scored.fact.id not in shown][: self.top_k]
        return [handle.marker for handle in _memory(self).mint(kept)]

    def _input(self, inputs: Mapping[str, Any], *, required: bool) -> Any:
        # A chain's inputs hold what its memories gave, and sometimes stop words.
        asked = {k: v for k, v in inputs.items() if k not in (self.memory_key, "stop")}
        if not asked and not required:
            return ""
        return _chosen(asked, self.input_key, _INPUTS, "input_key")


class _Turn:
    __slots__ = ("answered", "fact_ids", "said")

    def __init__(self, said: str, answered: str, fact_ids: tuple[str, ...]) -> None:
        self.said = said
        self.answered = answered
        self.fact_ids = fact_ids


def _memory(owner: InferScaleMemory) -> Memory:
    return memory_of(owner.memory)


def _key(ids: Ids) -> str:
    return repr(sorted(ids.items()))


def _as_messages(markers: Sequence[str], turns: Sequence[_Turn]) -> list[BaseMessage]:
    messages: list[BaseMessage] = [SystemMessage(" ".join(markers))] if markers else []
    for turn in turns:
        messages += [HumanMessage(turn.said), AIMessage(turn.answered)]
    return messages


def _chosen(values: Mapping[str, Any], key: str | None, usual: Sequence[str], argument: str) -> Any:
    """The value meant among several.

    Chains return sources, intermediate steps and the like beside the answer; asking every user to
    name a key that can be told from its name is what they complain about.
    """
    if key is not None:
        if key not in values:
            raise ValueError(f"{argument}={key!r} is not among {sorted(values)}")
        return values[key]
    if len(values) == 1:
        return next(iter(values.values()))
    for name in usual:
        if name in values:
            return values[name]
    raise ValueError(
        f"which of {sorted(values)} is meant? Say so with InferScaleMemory({argument}=…)"
    )


def _text(value: Any) -> str:
    if isinstance(value, BaseMessage):
        return str(value.text)
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = [_text(item) for item in value if isinstance(item, BaseMessage | str)]
        return texts[-1] if texts else ""
    return str(value)
