"""Values and contracts of prompt planning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferscale_sdk.protocol import EncodeOp, InjectOp
from inferscale_sdk.types import Fact, Message

__all__ = ["ChatTokenizer", "EncodePlan", "PlannedSegment", "PromptPlan", "Reading"]


class ChatTokenizer(ABC):
    """A model's tokenizer and chat template, on the client."""

    @property
    def control_tokens(self) -> frozenset[str]:
        """Texts of the tokens that steer the model: turn markers and their like.

        Nobody but the chat template may write them.
        """
        return frozenset()

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` as it stands.

        No special tokens are added at either end; special tokens *written in it by the template*
        are recognised.
        """

    @abstractmethod
    def encode_plain(self, text: str) -> list[int]:
        """Token ids of text from users or facts.

        Special tokens written in it stay plain text, so that nobody can forge a turn of the chat.
        """

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    @abstractmethod
    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The chat template applied to ``messages``, as text."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A run of prompt tokens that the server may inject as one unit.

    Args:
        key: Segment key.
        n_tokens: Length.
        kind: ``preamble`` (position 0) or ``fact``.
        fact_id: Whose text it is; ``None`` for the preamble.
    """

    key: str
    n_tokens: int
    kind: Literal["preamble", "fact"]
    fact_id: str | None = None


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """One request, ready for an engine.

    ``segments`` cover ``token_ids`` contiguously from position 0; what follows them (live facts,
    history, question) is prefilled. A plan without segments is a plain text request.

    Args:
        token_ids: The exact prompt.
        segments: What may be injected, in prompt order; empty for text.
        cache_salt: The salt of the engine's prefix cache; ends in ``salt_suffix(keys)`` when there
            are segments.
        messages: The same conversation as messages with the memory as text, for engines that
            cannot take token ids.
        fact_ids: All facts in the prompt in prompt order, live ones included.
        live_fact_ids: Those given as ordinary text after the segments.
        dropped_fact_ids: Those left out because the prompt was too long.
        memory_tokens: Tokens of all facts in the prompt.
        fingerprint: The model fingerprint the keys were made for.
        seq: ``FactStore.last_seq()`` at planning, to notice later changes; -1 if unknown.
        owner: Whose budget a preamble counts against that is learnt on the way, see
            :func:`inferscale_sdk.kv.key.owner_tag`; empty if unknown.
    """

    token_ids: tuple[int, ...]
    segments: tuple[PlannedSegment, ...] = ()
    cache_salt: str = ""
    messages: tuple[Message | Mapping[str, Any], ...] = ()
    fact_ids: tuple[str, ...] = ()
    live_fact_ids: tuple[str, ...] = ()
    dropped_fact_ids: tuple[str, ...] = ()
    memory_tokens: int = 0
    fingerprint: str = ""
    seq: int = -1
    owner: str = ""

    def operation(self, report_id: str | None = None) -> InjectOp | None:
        """The wire object, ``None`` for a plain text request."""
        from inferscale_sdk.protocol import SegmentRef

        if not self.segments:
            return None
        return InjectOp(
            fingerprint=self.fingerprint,
            segments=tuple(
                SegmentRef(key=s.key, n_tokens=s.n_tokens, kind=s.kind) for s in self.segments
            ),
            report_id=report_id,
            owner=self.owner,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A fact's KV that is kept until it is read again in another window.

    Args:
        key: Of the segment: its run's alone, so that nobody else's run forgets it.
        name: The same in every run: what the mean's key is made of.
        before: The facts that stood before it.
    """

    key: str
    name: str
    before: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """One encode request: ``token_ids`` = preamble + window + facts; spans are inside ``op``.

    Args:
        token_ids: The exact prompt.
        op: What to capture.
        fact_ids: The facts captured, in the order of ``op.captures`` (the preamble's capture, when
            there is one, comes first and has no fact).
        context_fact_ids: For each fact captured, the facts that stand before it in this prompt, or
            stood before it in its first reading.
        captures_preamble: Whether ``op.captures[0]`` is the preamble.
        reading_names: For each fact captured, :attr:`Reading.name`, where this is a first reading.
    """

    token_ids: tuple[int, ...]
    op: EncodeOp
    fact_ids: tuple[str, ...]
    context_fact_ids: tuple[tuple[str, ...], ...]
    captures_preamble: bool = False
    reading_names: tuple[str, ...] = ()
