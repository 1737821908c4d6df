"""Whether the harness measures what it says: cases with a known outcome, on the real model."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from inferscale_sdk.bench.quality.dataset import load_locomo  # noqa: E402
from inferscale_sdk.bench.quality.material import Material  # noqa: E402
from inferscale_sdk.bench.quality.model import ScoringModel  # noqa: E402
from inferscale_sdk.facts.base import EncodingRecord  # noqa: E402
from inferscale_sdk.prompt.plan import Planner  # noqa: E402
from inferscale_sdk.testing.fake_embedder import FakeEmbedder  # noqa: E402
from inferscale_sdk.types import Message  # noqa: E402

pytestmark = pytest.mark.engine

K = 8


class Case:
    """One question, its facts, and their KV computed behind whatever a test wants."""

    def __init__(self, model, material, question):
        self.model, self.material = model, material
        self.question = question
        self.planner = Planner(model.tokenizer, store_secret=material.store.secret)
        self.facts = list(reversed(material.recalled(question, K, "guaranteed")))
        self.answer = model.tokenizer.encode_plain(question.answer)
        self.stored, self.records = {}, {}

    def encode(self, window, facts):
        plan = self.planner.plan_encode(
            window,
            facts,
            fingerprint=self.model.model.fingerprint,
            partition=self.material.owner.partition,
            capture_preamble=True,
        )
        self.stored |= self.model.capture(plan.token_ids, plan.op.captures)
        for fact, span in zip(facts, plan.op.captures[1:], strict=True):
            self.records[fact.id] = EncodingRecord(
                fact.id, 1, "p", span.key, span.stop - span.start, (), fact.created_at
            )

    def logprobs(self, *, inject, model=None, **kwargs):
        plan = self.planner.plan(
            [Message("user", self.question.text)],
            facts=self.facts,
            encodings=self.records if inject else {},
            scope=self.material.owner,
            fingerprint=self.model.model.fingerprint,
            max_model_len=4096,
            reserve_tokens=8,
            inject=inject,
        )
        assert bool(plan.segments) == inject
        return (model or self.model).score(plan, self.stored, self.answer, **kwargs)

    def nll(self, logprobs):
        return -float(logprobs[torch.arange(len(self.answer)), torch.tensor(self.answer)].mean())


def dtype(cases):
    return str(cases[0].model.model.dtype).removeprefix("torch.")


def divergence(full, other):
    return float((full.exp() * (full - other)).sum(-1).mean())


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def cases(request, model_path, life_file, tmp_path_factory):
    model = ScoringModel.load(str(model_path), dtype=request.param)
    (talk,) = load_locomo(life_file, "turns").conversations
    material = Material(talk, tmp_path_factory.mktemp("m"), FakeEmbedder(), seed=0)
    yield [Case(model, material, question) for question in talk.questions[:3]]
    material.close()


class Noise(NamedTuple):
    """What rounding does: the full prompt against itself, computed in other pieces."""

    kl: float
    nll: float


ROUNDING = {"bfloat16": Noise(kl=0.02, nll=0.15), "float32": Noise(kl=1e-5, nll=1e-3)}
"""What it may do to a model of thirty layers, at most."""


@pytest.fixture(scope="module")
def noise(cases):
    kl, nll = [], []
    for case in cases:
        whole, pieces = case.logprobs(inject=False), case.logprobs(inject=False, chunk=32)
        kl.append(divergence(whole, pieces))
        nll.append(abs(case.nll(whole) - case.nll(pieces)))
    return Noise(max(kl), max(nll))


def test_the_full_prompt_twice_is_the_same_but_for_rounding(cases, noise):
    most = ROUNDING[dtype(cases)]
    assert noise.kl < most.kl and noise.nll < most.nll


def test_exact_context_gives_the_full_prompts_result(cases, noise):
    """Facts captured in the very prompt they are injected into."""
    most = ROUNDING[dtype(cases)]
    for case in cases:
        case.encode((), case.facts)
        full, injected = case.logprobs(inject=False), case.logprobs(inject=True)
        assert divergence(full, injected) <= max(2 * noise.kl, most.kl / 20)
        assert case.nll(injected) == pytest.approx(case.nll(full), abs=most.nll)


def test_broken_rotation_is_a_clear_loss(cases, noise):
    """Keys turned by a wrong base: further from the full prompt than turned right."""
    right, wrong, full = [], [], []
    tables = cases[0].model.proof.tables
    for case in cases:
        case.stored, case.records = {}, {}
        for fact in case.facts:  # far from where they will stand
            case.encode(case.material.store.preceding(fact, 8), [fact])
        moved = [None if t is None else _with_theta(t, 500.0) for t in tables]
        broken = replace(case.model, proof=replace(case.model.proof, tables=tuple(moved)))
        reference = case.logprobs(inject=False)
        full.append(case.nll(reference))
        right.append(divergence(reference, case.logprobs(inject=True)))
        wrong.append(divergence(reference, case.logprobs(inject=True, model=broken)))
    assert sum(wrong) > 2 * sum(right)
    assert sum(wrong) / len(wrong) > 10 * noise.kl


def _with_theta(table, theta):
    return type(table)(table.spec.with_theta(theta), 8192, rounding=None, device="cpu")


def test_a_missing_segment_is_an_error_and_not_a_number(cases):
    case = cases[0]
    case.encode((), case.facts)
    case.stored.pop(next(iter(case.records.values())).key)
    from inferscale_sdk.errors import IncompatibleModel

    with pytest.raises(IncompatibleModel, match="can be injected"):
        case.logprobs(inject=True)
