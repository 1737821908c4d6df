"""What a storage dtype costs in answers: the same injected prompts, from exact and from packed KV.

The model is given golden answers token by token (teacher forcing), after prompts whose facts and
preamble are injected. Compared are its next-token distributions with segments as they were
captured and with the same segments packed and restored, by the KL divergence at every token of the
answer and by the answer's negative log-likelihood (NLL). The floor is what the same segments give
when the rest of the prompt is computed in other pieces, which changes nothing but rounding.

``python -m inferscale_sdk.demo.storage [MODEL]`` prints the table of ``docs/tiers.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from inferscale_sdk.bench.quality.model import ScoringModel
from inferscale_sdk.demo.life import Life, Turn, life_users, load_life
from inferscale_sdk.facts.base import FACTS_FILE, EncodingRecord
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.kv.layout import KEY, KV, VALUE
from inferscale_sdk.kv.quantize import StorageDtype, dequantize, quantize
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.types import Fact, Message, Namespace, NewFact

__all__ = ["StorageLoss", "loss_table", "measure_storage_loss"]

WINDOW = BATCH = 20
FLOOR, TEXT = "computed in other pieces", "the facts as prompt text"
_CHUNK = 16
_MIN_WORDS, _HEAD_WORDS = 12, 5


@dataclass(frozen=True, slots=True)
class StorageLoss:
    """One way of keeping segments, against segments as they were captured.

    Args:
        name: The storage dtype, or what else was compared.
        prompts: How many.
        tokens: Of all answers together.
        bytes_share: Bytes of the packed segments over those of the exact ones.
        key_error: Error of keys, root mean square over root mean square.
        value_error: The same of values.
        kl_mean: KL divergence from the exact distribution, in nats, averaged over tokens.
        kl_max: The largest at any token.
        nll_change: Change of an answer's NLL per token, averaged over answers.
        nll_change_se: Its standard error over answers.
        same_top: Share of tokens where the likeliest next token is the same.
    """

    name: str
    prompts: int
    tokens: int
    bytes_share: float
    key_error: float
    value_error: float
    kl_mean: float
    kl_max: float
    nll_change: float
    nll_change_se: float
    same_top: float


@dataclass(frozen=True, slots=True)
class _Task:
    """A prompt with injected facts, the same with the facts as text, and an answer's tokens."""

    injected: PromptPlan
    text: PromptPlan
    answer: tuple[int, ...]


def measure_storage_loss(
    model: ScoringModel, *, k: int = 20, quotes: int = 100
) -> list[StorageLoss]:
    """Measure every storage dtype on the invented lives that come with the package.

    Args:
        model: The model, proved.
        k: Facts in each prompt, those that hold the answer last.
        quotes: Besides the lives' own questions, so many things said are asked for word by word.

    Returns:
        The floor, the storage dtypes, and for scale the same facts as prompt text.
    """
    tasks: list[_Task] = []
    segments: dict[str, Segment] = {}
    with TemporaryDirectory() as folder:
        for user in life_users():
            life = load_life(user)
            bench = _LifeBench(model, life, Path(folder) / user, k)
            segments |= bench.segments
            share = round(quotes * len(life.turns) / _all_turns())
            tasks += bench.tasks(share)
    exact = [model.score(task.injected, segments, task.answer) for task in tasks]
    whole = (1.0, 0.0, 0.0)
    floor = [model.score(t.injected, segments, t.answer, chunk=_CHUNK) for t in tasks]
    found = [_compare(FLOOR, tasks, exact, floor, whole)]
    for storage in StorageDtype:
        packed, figures = _pack(segments, storage)
        given = [model.score(task.injected, packed, task.answer) for task in tasks]
        found.append(_compare(storage.value, tasks, exact, given, figures))
    text = [model.score(task.text, {}, task.answer) for task in tasks]
    return [*found, _compare(TEXT, tasks, exact, text, (0.0, 0.0, 0.0))]


def loss_table(losses: Sequence[StorageLoss]) -> str:
    """The measurement as a Markdown table."""
    lines = [
        "| kept as | bytes | key error | value error | KL mean | KL max | NLL change | same top |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for loss in losses:
        plain = loss.name in (FLOOR, TEXT)
        stored = ["", "", ""] if plain else [
            f"{loss.bytes_share:.1%}", f"{loss.key_error:.2%}", f"{loss.value_error:.2%}"
        ]  # fmt: skip
        row = [loss.name if plain else f"`{loss.name}`", *stored, f"{loss.kl_mean:.5f}"]
        change = f"{loss.nll_change:+.4f} ± {loss.nll_change_se:.4f}"
        row += [f"{loss.kl_max:.4f}", change, f"{loss.same_top:.1%}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _all_turns() -> int:
    return sum(len(load_life(user).turns) for user in life_users())


class _LifeBench:
    """One life's facts, encoded behind windows as the product does it, and prompts over them."""

    def __init__(self, model: ScoringModel, life: Life, folder: Path, k: int) -> None:
        self._model, self._life, self._k = model, life, k
        self._owner = Namespace(user_id=life.user_id)
        folder.mkdir()
        with closing(SQLiteFactStore(folder / FACTS_FILE)) as store:
            store.add([NewFact(_line(t), "life", source=t.id) for t in life.turns], self._owner)
            self._facts = sorted(store.find(self._owner), key=lambda fact: fact.position)
            self._planner = Planner(model.tokenizer, store_secret=store.secret)
        self.segments: dict[str, Segment] = {}
        self._records: dict[str, EncodingRecord] = {}
        for start in range(0, len(self._facts), BATCH):
            self._encode(self._facts[max(0, start - WINDOW) : start], start)

    def _encode(self, window: Sequence[Fact], start: int) -> None:
        facts = self._facts[start : start + BATCH]
        plan = self._planner.plan_encode(
            window,
            facts,
            fingerprint=self._model.model.fingerprint,
            partition=self._owner.partition,
            capture_preamble=True,
        )
        self.segments |= self._model.capture(plan.token_ids, plan.op.captures)
        for fact, span in zip(facts, plan.op.captures[1:], strict=True):
            n_tokens = span.stop - span.start
            self._records[fact.id] = EncodingRecord(
                fact.id, fact.version, "bench", span.key, n_tokens, (), datetime.now(UTC)
            )

    def tasks(self, quotes: int) -> list[_Task]:
        """The life's questions, and things said, asked for word by word."""
        asked = [(q.question, q.answer, set(q.evidence)) for q in self._life.questions]
        long = [turn for turn in self._life.turns if len(turn.text.split()) >= _MIN_WORDS]
        for turn in _spread(long, quotes):
            words = turn.text.split()
            head, rest = " ".join(words[:_HEAD_WORDS]), " ".join(words[_HEAD_WORDS:])
            question = f'What was said, word for word, that begins with "{head}"? Go on from there.'
            asked.append((question, rest, {turn.id}))
        return [self._task(number, *one) for number, one in enumerate(asked)]

    def _task(self, number: int, question: str, answer: str, evidence: set[str]) -> _Task:
        holding = [fact for fact in self._facts if fact.source in evidence]
        others = [fact for fact in self._facts if fact.source not in evidence]
        step = max(1, len(others) // max(1, self._k - len(holding)))
        chosen = others[number % step :: step][: max(0, self._k - len(holding))]
        facts = [*chosen, *holding]  # what holds the answer stands last, as recall has it
        tokens = tuple(self._model.tokenizer.encode(answer))
        return _Task(self._plan(question, facts, True), self._plan(question, facts, False), tokens)

    def _plan(self, question: str, facts: Sequence[Fact], inject: bool) -> PromptPlan:
        return self._planner.plan(
            [Message("user", question)],
            facts=facts,
            encodings={fact.id: self._records[fact.id] for fact in facts},
            scope=self._owner,
            fingerprint=self._model.model.fingerprint,
            max_model_len=self._model.model.max_model_len,
            reserve_tokens=256,
            inject=inject,
        )


def _line(turn: Turn) -> str:
    return f"{turn.role}: {turn.text}"


def _spread(turns: Sequence[Turn], n: int) -> Iterator[Turn]:
    """``n`` of them at even distances."""
    n = min(n, len(turns))
    return (turns[i * len(turns) // n] for i in range(n))


def _pack(
    segments: Mapping[str, Segment], storage: StorageDtype
) -> tuple[dict[str, Segment], tuple[float, float, float]]:
    """Segments packed and restored; bytes share, key error and value error of all together."""
    restored: dict[str, Segment] = {}
    packed_bytes, errors, sizes = 0, [0.0, 0.0], [0.0, 0.0]
    for key, segment in segments.items():
        packed = quantize(segment.data, storage)
        packed_bytes += packed.nbytes
        data = dequantize(packed)
        restored[key] = Segment(key, data, segment.origin, segment.token_digest)
        for half in (KEY, VALUE):
            plain = segment.data.select(KV, half).double()
            errors[half] += float((data.select(KV, half).double() - plain).square().sum())
            sizes[half] += float(plain.square().sum())
    share = packed_bytes / sum(segment.nbytes for segment in segments.values())
    key_error, value_error = ((e / s) ** 0.5 for e, s in zip(errors, sizes, strict=True))
    return restored, (share, key_error, value_error)


def _compare(
    name: str,
    tasks: Sequence[_Task],
    exact: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    figures: tuple[float, float, float],
) -> StorageLoss:
    """Each of ``exact`` and ``given`` are log-probabilities ``[answer, vocabulary]``."""
    kl, nll, same = [], [], []
    for task, p, q in zip(tasks, exact, given, strict=True):
        kl.append((p.double().exp() * (p.double() - q.double())).sum(-1))
        index = torch.tensor(task.answer, device=p.device)[:, None]
        nll.append((p - q).gather(-1, index)[:, 0].double())
        same.append((p.argmax(-1) == q.argmax(-1)).double())
    every_kl, per_answer = torch.cat(kl), torch.stack([change.mean() for change in nll])
    return StorageLoss(
        name,
        len(tasks),
        len(every_kl),
        *figures,
        kl_mean=float(every_kl.mean()),
        kl_max=float(every_kl.max()),
        nll_change=float(per_answer.mean()),
        nll_change_se=float(per_answer.std() / len(tasks) ** 0.5),
        same_top=float(torch.cat(same).mean()),
    )


def _main(argv: Sequence[str]) -> None:
    from inferscale_sdk.models import bundled_model_path

    source = argv[1] if len(argv) > 1 else str(bundled_model_path())
    losses = measure_storage_loss(ScoringModel.load(source))
    sys.stdout.write(f"{losses[0].prompts} prompts, {losses[0].tokens} tokens of answers\n\n")
    sys.stdout.write(loss_table(losses) + "\n")


if __name__ == "__main__":
    _main(sys.argv)
