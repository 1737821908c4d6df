"""How each arm gets ready, untimed, and makes its prompt, timed."""

from __future__ import annotations

import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferscale_sdk.bench.speed.arms import Arm, plan_for
from inferscale_sdk.bench.speed.bed import ASKED, OTHERS, Bed
from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.errors import EngineError
from inferscale_sdk.memory import Memory
from inferscale_sdk.prompt.base import PromptPlan

__all__ = ["Case", "Contender", "Finder", "PastedByMem0", "contenders_for"]

_ONE = Sampling(max_tokens=1)
_PER_PROMPT = 100


@dataclass(frozen=True, slots=True)
class Case:
    """One question with so many facts.

    Args:
        number: Of the question, from 0.
        text: The question.
        k: Facts in the prompt; 0 is the floor.
        answer_tokens: Room for the answer.
    """

    number: int
    text: str
    k: int
    answer_tokens: int


class Contender(ABC):
    """One arm. :attr:`injected` counts what its untimed requests injected."""

    def __init__(self, arm: Arm, engine: Engine, memory: Memory, salt: str) -> None:
        self.arm, self.engine, self.injected = arm, engine, 0
        self._memory, self._salt = memory, salt

    def ready(self, case: Case) -> None:  # noqa: B027 - most arms need nothing
        """Bring about the state that the arm stands for; not timed."""

    @abstractmethod
    def plan(self, case: Case) -> PromptPlan:
        """Recall and plan; timed."""

    def _recalled(self, case: Case) -> PromptPlan:
        facts: list[str] | None = [] if case.k == 0 else None
        return self._memory.prepare(
            case.text,
            facts=facts,
            top_k=case.k or None,
            user_id=ASKED,
            max_tokens=case.answer_tokens,
        )

    def _send(self, plan: PromptPlan) -> None:
        self.injected += self.engine.generate(plan, _ONE).report.injected_tokens


class Text(Contender):
    """Everything is prefilled."""

    def plan(self, case: Case) -> PromptPlan:
        """The prompt under a salt of its own."""
        return plan_for(self.arm, self._recalled(case), self._salt)


class Repeated(Contender):
    """The same facts as before, in another order, under one salt: all a prefix cache can do."""

    def __init__(self, arm: Arm, engine: Engine, memory: Memory, salt: str) -> None:
        super().__init__(arm, engine, memory, salt)
        self._draw = random.Random(0)  # noqa: S311 - an order, not a secret
        self._seen: set[tuple[int, int]] = set()

    def ready(self, case: Case) -> None:
        """These facts have been asked about before."""
        if (case.number, case.k) not in self._seen:
            self._seen.add((case.number, case.k))
            self._send(self.plan(case))

    def plan(self, case: Case) -> PromptPlan:
        """Recall, and put the facts into another order."""
        facts = self._memory.search(case.text, top_k=case.k, user_id=ASKED)
        self._draw.shuffle(facts)
        plan = self._memory.prepare(
            case.text, facts=facts, user_id=ASKED, inject=False, max_tokens=case.answer_tokens
        )
        return plan_for(self.arm, plan, self._salt)


class Ceiling(Contender):
    """The same prompt lies in vLLM's own prefix cache."""

    def ready(self, case: Case) -> None:
        """Leave it there."""
        self._send(self.plan(case))

    def plan(self, case: Case) -> PromptPlan:
        """The prompt under the run's salt."""
        return plan_for(self.arm, self._recalled(case), self._salt)


class InMemory(Contender):
    """Injected from host memory, or the device's."""

    def ready(self, case: Case) -> None:
        """Have its segments there."""
        if case.k:
            self._send(self.plan(case))

    def plan(self, case: Case) -> PromptPlan:
        """The prompt with its segments."""
        return plan_for(self.arm, self._recalled(case), self._salt)


class Below(InMemory):
    """Injected from a tier below memory: whatever lay in memory was pushed out before."""

    def __init__(self, arm: Arm, engine: Engine, memory: Memory, salt: str) -> None:
        super().__init__(arm, engine, memory, salt)
        facts = memory.get_all(user_id=OTHERS)
        self._others = [
            memory.prepare("?", facts=facts[start : start + _PER_PROMPT], user_id=OTHERS)
            for start in range(0, len(facts), _PER_PROMPT)
        ]

    def ready(self, case: Case) -> None:
        """Push its segments out of memory, and look whether they lie where they should.

        Raises:
            EngineError: They are still in memory, or not in the tier.
        """
        for plan in self._others:
            self._send(plan_for(self.arm, plan, self._salt))
        wanted = self._recalled(case)
        places = self.engine.locate([segment.key for segment in wanted.segments])
        for segment in wanted.segments:
            found = places.get(segment.key, ())
            if self.arm.value not in found or "host" in found:
                raise EngineError(
                    f"segment {segment.key} lies in {', '.join(found) or 'no tier'}, where "
                    f"{self.arm.value} alone was to be measured; see the server's log"
                )


def contenders_for(bed: Bed, arms: Sequence[Arm]) -> dict[Arm, Contender]:
    """Who takes part; Mem0 is added by whoever has one."""
    kinds: dict[Arm, type[Contender]] = {
        Arm.PROMPT: Text,
        Arm.REPEATED: Repeated,
        Arm.INJECT: InMemory,
        Arm.LIVE: InMemory,
        Arm.DEVICE: InMemory,
        Arm.DISK: Below,
        Arm.REMOTE: Below,
        Arm.CACHED: Ceiling,
    }
    salt = secrets.token_hex(16)
    return {
        arm: kinds[arm](arm, bed.engine_for(arm), bed.memory, salt) for arm in arms if arm in kinds
    }


class Finder(Protocol):
    """A memory that finds texts."""

    def search(self, query: str, top_k: int) -> list[str]:
        """Texts, best first."""


class PastedByMem0(Contender):
    """What Mem0 finds for the question, pasted into the prompt as its users do."""

    def __init__(self, engine: Engine, memory: Memory, finder: Finder) -> None:
        super().__init__(Arm.MEM0, engine, memory, "")
        self._finder = finder

    def plan(self, case: Case) -> PromptPlan:
        """Ask Mem0, render, tokenise."""
        found = self._finder.search(case.text, case.k)
        listed = "\n".join(f"- {text}" for text in found)
        system = (
            "You are a helpful AI. Answer the question based on query and memories.\n"
            f"User Memories:\n{listed}"
        )
        tokenizer = self.engine.tokenizer
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": case.text},
        ]
        token_ids = tuple(tokenizer.encode(tokenizer.render(messages)))
        return plan_for(self.arm, PromptPlan(token_ids, messages=tuple(messages)), "")
