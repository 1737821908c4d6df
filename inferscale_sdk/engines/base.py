"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferscale_sdk.prompt.base import ChatTokenizer, EncodePlan, PromptPlan
from inferscale_sdk.prompt.strings import require_strings
from inferscale_sdk.protocol import EncodeAnswer, ProbeVerdict, StatsAnswer
from inferscale_sdk.types import InjectionReport

__all__ = ["Completion", "CompletionChunk", "Engine", "EngineInfo", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Args:
        max_tokens: Tokens of the answer at most.
        temperature: 0 is greedy.
        top_p: Nucleus.
        stop: Stop strings.
        seed: For repeatable sampling.
        extra: Further request fields, passed on as they are (``logprobs``, ``tools`` …).

    Raises:
        ConfigurationError: A string among them is not Unicode text.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_strings([self.stop, self.extra], "the sampling")


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    Args:
        text: The answer.
        finish_reason: ``stop``, ``length``, … as the engine says.
        report: What became of the memory.
        completion_tokens: Tokens generated.
        raw: The engine's response object, if any.
    """

    text: str
    finish_reason: str
    report: InjectionReport
    completion_tokens: int = 0
    raw: Any = None


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """A piece of a streamed answer. Only the last one carries ``completion``."""

    text: str
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Identity and abilities.

    Args:
        model: Name under which the engine serves the model.
        fingerprint: Digest of model, dtype and rotary parameters; empty if it cannot inject.
        max_model_len: Context length in tokens.
        can_inject: Whether injection is proved and switched on.
        reason: Why not, in a sentence for people.
        block_size: Tokens per cache block, 0 if the engine has none.
        bytes_per_token: KV bytes of one token over all layers.
        probe: The rotation probe's verdict.
        details: Whatever else the engine says (tiers, versions).
    """

    model: str
    fingerprint: str
    max_model_len: int
    can_inject: bool
    reason: str = ""
    block_size: int = 0
    bytes_per_token: int = 0
    probe: ProbeVerdict = field(default_factory=ProbeVerdict)
    details: dict[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """Generates from a planned prompt, and encodes facts. Safe for several threads and tasks.

    The a-methods do the same without blocking the event loop. All methods raise
    :class:`~inferscale_sdk.errors.EngineUnavailable`,
    :class:`~inferscale_sdk.errors.EngineTimeout` or :class:`~inferscale_sdk.errors.EngineError`;
    :meth:`generate` and :meth:`stream` also raise
    :class:`~inferscale_sdk.errors.ContextOverflow` before anything is sent.
    """

    @property
    @abstractmethod
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer; loaded on first use."""

    @abstractmethod
    def info(self, *, refresh: bool = False) -> EngineInfo:
        """Who is there; cached after the first call.

        Runs the rotation probe if the engine has not been probed yet. Never raises for an engine
        that merely cannot inject.
        """

    @abstractmethod
    def encode(self, plan: EncodePlan) -> EncodeAnswer:
        """Capture the plan's spans. Safe to repeat."""

    @abstractmethod
    async def aencode(self, plan: EncodePlan) -> EncodeAnswer:
        """Async twin of :meth:`encode`."""

    @abstractmethod
    def generate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """The whole answer."""

    @abstractmethod
    async def agenerate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Async twin of :meth:`generate`."""

    @abstractmethod
    def stream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> Iterator[CompletionChunk]:
        """Text as it comes; closing the iterator early stops the engine's work on it."""

    @abstractmethod
    def astream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> AsyncIterator[CompletionChunk]:
        """Async twin of :meth:`stream`."""

    @abstractmethod
    def forget(self, keys: Sequence[str]) -> int:
        """Drop segments from every tier; returns how many were there.

        Raises:
            EngineError: Some may still lie in a tier; asking again is fine.
        """

    def prefetch(self, keys: Sequence[str]) -> None:  # noqa: B027 - an engine may ignore a hint
        """A hint that these segments will be injected in a moment, which may start reading them.

        Returns at once, and never raises. Changes no answer.
        """

    @abstractmethod
    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Where segments lie now: names of tiers by key; a key that lies nowhere is left out.

        Looks into every tier and every rank, at segments of other models and at damaged copies
        that were set aside as well (``quarantine``). No use, and nothing is moved.
        """

    @abstractmethod
    def stats(self, report_ids: Sequence[str] = ()) -> StatsAnswer:
        """Counters of the engine's KV store; empty where the engine has none."""

    @abstractmethod
    def close(self) -> None:
        """Release connections, and end a server this object started. Twice is fine."""

    @abstractmethod
    async def aclose(self) -> None:
        """Async twin of :meth:`close`."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
