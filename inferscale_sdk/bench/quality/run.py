"""The measurement from start to results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from inferscale_sdk.bench.quality.arms import Arm, parse_arm
from inferscale_sdk.bench.quality.dataset import (
    Conversation,
    DataSet,
    Question,
    Unit,
    load_locomo,
)
from inferscale_sdk.bench.quality.encodings import Encodings
from inferscale_sdk.bench.quality.material import Evidence, Material
from inferscale_sdk.bench.quality.model import ScoringModel
from inferscale_sdk.bench.quality.results import Result, ResultFile, result_key
from inferscale_sdk.bench.quality.scoring import answer_f1, gold_recall
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.prompt.frame import DEFAULT_FRAME
from inferscale_sdk.prompt.live import n_live
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.recall.base import Embedder
from inferscale_sdk.types import Fact, Message

__all__ = ["Cell", "Measured", "Progress", "QualityOptions", "QualityRun"]

INSTRUCTION = "Answer with a short phrase."
ANSWER_TOKENS = 24
Advance = Callable[[int], None]


class Progress(Protocol):
    """Who wants to know how far the measurement is."""

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """A stage of ``total`` steps; yields a function that is told how many are done."""
        ...


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What to measure.

    Args:
        data: A file in LoCoMo's shape.
        model: Folder or name of the model.
        work: Folder for results, embeddings and distributions.
        arms: See :func:`~inferscale_sdk.bench.quality.arms.parse_arm`.
        ks: Facts given to the model.
        evidence: Which choices of facts.
        unit: What counts as a fact.
        conversations: So many of the file's first, 0 for all.
        questions: Of each, drawn at random, 0 for all.
        answers: Have the model answer, too.
        dtype: What the model computes in, by default the dtype of its weights.
        seed: Of everything drawn.
    """

    data: Path
    model: str
    work: Path
    arms: tuple[str, ...]
    ks: tuple[int, ...] = (20,)
    evidence: tuple[Evidence, ...] = ("natural",)
    unit: Unit = "observations"
    conversations: int = 0
    questions: int = 20
    answers: bool = False
    dtype: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One choice of facts: how many, and whether the evidence is among them."""

    k: int
    evidence: Evidence


@dataclass
class Measured:
    """Everything a report is made of.

    Args:
        results: By arm name, cell, and question id.
        encoding: By arm name: own tokens and prompt tokens of what this run encoded.
        fingerprint: Of the model.
        dtype: It computed in.
    """

    results: dict[str, dict[Cell, dict[str, Result]]] = field(default_factory=dict)
    encoding: dict[str, tuple[int, int]] = field(default_factory=dict)
    fingerprint: str = ""
    dtype: str = ""


class QualityRun:
    """Measures what is not yet in the result file.

    Args:
        options: What to measure.
        embedder: For recall and relatives.
        progress: Told how far it is.

    Raises:
        ConfigurationError: An arm or a number is wrong.
    """

    def __init__(self, options: QualityOptions, embedder: Embedder, progress: Progress) -> None:
        for name in ("conversations", "questions"):
            if getattr(options, name) < 0:
                raise ConfigurationError(f"{name}={getattr(options, name)} is negative; 0 is all")
        if any(k < 1 for k in options.ks):
            raise ConfigurationError(f"k={list(options.ks)}: give numbers from 1")
        self._options, self._embedder, self._progress = options, embedder, progress
        # The full prompt first: the others are compared with it.
        names = dict.fromkeys(("prompt", "other", *options.arms))
        self._arms = [parse_arm(name) for name in names]
        self._data: DataSet = load_locomo(options.data, options.unit)
        self._file = ResultFile(options.work)
        self._model = ScoringModel.load(options.model, dtype=options.dtype)

    def run(self) -> Measured:
        """Measure."""
        measured = Measured(
            fingerprint=self._model.model.fingerprint,
            dtype=str(self._model.model.dtype).removeprefix("torch."),
        )
        wanted = self._options.conversations or len(self._data.conversations)
        for conversation in self._data.conversations[:wanted]:
            folder = self._options.work / "memory" / f"{conversation.id}-{self._data.digest}"
            material = Material(conversation, folder, self._embedder, seed=self._options.seed)
            made: dict[str, Encodings] = {}
            with closing(material):
                for arm in self._arms:
                    bench = _Bench(self._model, material, arm, made)
                    self._measure(arm, conversation, bench, measured)
        return measured

    # -- one arm on one conversation ---------------------------------------------------------

    def _measure(
        self, arm: Arm, conversation: Conversation, bench: _Bench, measured: Measured
    ) -> None:
        material = bench.material
        tasks = list(self._tasks(arm, conversation, material))
        with self._progress.progress(f"{material.id}: {arm.name}", len(tasks)) as advance:
            for done, task in enumerate(tasks, start=1):
                result = self._result(arm, task, bench)
                cells = measured.results.setdefault(arm.name, {})
                cells.setdefault(task.cell, {})[result.question] = result
                advance(done)
        own, prompt = measured.encoding.get(arm.name, (0, 0))
        measured.encoding[arm.name] = (own + bench.own_tokens, prompt + bench.prompt_tokens)

    def _tasks(self, arm: Arm, conversation: Conversation, material: Material) -> Iterator[_Task]:
        for question in self._drawn(conversation):
            for evidence in self._options.evidence:
                if evidence == "guaranteed" and not material.evidence(question):
                    continue  # nothing to guarantee
                for k in self._options.ks:
                    facts = material.recalled(question, k, evidence)
                    full = self._key(material, question, _PROMPT, facts)
                    if arm.kind == "other":
                        facts = material.others(question, k)
                    if arm.kind == "none":
                        facts = []
                    key = self._key(material, question, arm, facts, full)
                    yield _Task(Cell(k, evidence), question, tuple(facts), key, full)

    def _drawn(self, conversation: Conversation) -> Sequence[Question]:
        """The first so many of a shuffled list: asking for more keeps those measured before."""
        questions = list(conversation.questions)
        random.Random(f"{self._options.seed}/{conversation.id}").shuffle(questions)  # noqa: S311
        return questions[: self._options.questions or None]

    def _key(
        self,
        material: Material,
        question: Question,
        arm: Arm,
        facts: Sequence[Fact],
        full: str = "",
    ) -> str:
        return result_key(
            model=self._model.model.fingerprint,
            data=self._data.digest,
            frame=DEFAULT_FRAME.version,
            instruction=INSTRUCTION,
            question=question.id,
            arm=arm.spec,
            facts=[fact.position for fact in facts],
            # Its divergence is from this very prompt.
            full=full,
        )

    def _result(self, arm: Arm, task: _Task, bench: _Bench) -> Result:
        result = self._file.get(task.key)
        # Nobody asks how well another memory answers.
        answers = self._options.answers and arm.kind != "other"
        if result is not None and not (answers and result.answer is None):
            return result
        plan = bench.plan(task.question, task.facts)
        if result is None:
            result = self._scored(arm, task, bench, plan)
        if answers:
            given = self._model.greedy(plan, bench.segments, ANSWER_TOKENS)
            result = replace(
                result,
                answer=given,
                f1=answer_f1(given, task.question.answer, task.question.category),
                recall=gold_recall(given, task.question.answer),
            )
        self._file.add(result)
        return result

    def _scored(self, arm: Arm, task: _Task, bench: _Bench, plan: PromptPlan) -> Result:
        """How likely the golden answer is, forced upon the model."""
        answer = self._model.tokenizer.encode_plain(task.question.answer)
        logprobs = self._model.score(plan, bench.segments, answer, chunk=arm.chunk)
        rows = torch.arange(len(answer))
        return Result(
            key=task.key,
            conversation=bench.material.id,
            question=task.question.id,
            category=task.question.category,
            nll=-float(logprobs[rows, torch.tensor(answer)].mean()),
            kl=self._divergence(arm, task, logprobs),
            prompt_tokens=len(plan.token_ids),
            prefilled_tokens=len(plan.token_ids) - sum(s.n_tokens for s in plan.segments),
        )

    def _divergence(self, arm: Arm, task: _Task, logprobs: torch.Tensor) -> float:
        """Mean KL(full prompt ‖ arm) over the answer's tokens; keeps the full prompt's side."""
        if arm.spec == _PROMPT.spec:
            self._file.keep_reference(task.full, logprobs.numpy().astype(np.float16))
            return 0.0
        kept = self._file.reference(task.full)
        if kept is None:
            return float("nan")
        full = torch.log_softmax(torch.from_numpy(kept).float(), -1)
        return float((full.exp() * (full - logprobs)).sum(-1).mean())


@dataclass(frozen=True, slots=True)
class _Task:
    """One question with its facts, best first.

    Args:
        cell: How the facts were chosen.
        question: What is asked.
        facts: What the model is given.
        key: Of the result.
        full: Of the full prompt's result for the same question and choice.
    """

    cell: Cell
    question: Question
    facts: tuple[Fact, ...]
    key: str
    full: str


_PROMPT = parse_arm("prompt")


class _Bench:
    """Plans one arm's prompts, encoding what they need.

    Args:
        model: Computes.
        material: A conversation.
        arm: How the model gets it.
        made: What arms before encoded of it, by what the KV depends on.
    """

    def __init__(
        self, model: ScoringModel, material: Material, arm: Arm, made: dict[str, Encodings]
    ) -> None:
        self.material = material
        self._model, self._arm, self._made = model, arm, made
        self._planner = Planner(model.tokenizer, store_secret=material.store.secret)
        self._encodings: Encodings | None = None

    @property
    def segments(self) -> dict[str, Segment]:
        return {} if self._encodings is None else self._encodings.segments

    @property
    def own_tokens(self) -> int:
        return 0 if self._encodings is None else self._encodings.own_tokens

    @property
    def prompt_tokens(self) -> int:
        return 0 if self._encodings is None else self._encodings.prompt_tokens

    def plan(self, question: Question, facts: Sequence[Fact]) -> PromptPlan:
        """The prompt for a question; ``facts`` are best first."""
        chosen = list(facts)[: self._arm.top or None]
        stored = []
        if self._arm.kind == "injected":
            live = n_live(chosen, self._arm.live, self._planner.count_tokens, self._arm.order)
            stored = chosen[live:]
            if self._arm.encoding not in self._made:
                self._made[self._arm.encoding] = self._start()
            self._encodings = self._made[self._arm.encoding]
            self._encodings.ensure(stored)
        records = self._encodings.records if self._encodings is not None else {}
        return self._planner.plan(
            [Message("user", f"{question.text}\n{INSTRUCTION}")],
            facts=chosen[::-1],
            encodings={f.id: records[f.id] for f in stored if f.id in records},
            scope=self.material.owner,
            fingerprint=self._model.model.fingerprint,
            max_model_len=self._model.model.max_model_len,
            reserve_tokens=ANSWER_TOKENS,
            inject=self._arm.kind == "injected",
            overflow="drop_facts",
            order=self._arm.order,
        )

    def _start(self) -> Encodings:
        plan = self._planner.plan_encode(
            (),
            (),
            fingerprint=self._model.model.fingerprint,
            partition=self.material.owner.partition,
            capture_preamble=True,
        )
        found = self._model.capture(plan.token_ids, plan.op.captures)
        (preamble,) = found.values()
        return Encodings(self._model, self._planner, self.material, self._arm, preamble)
