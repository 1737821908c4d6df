"""KV of one conversation's facts, made as one arm wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from inferscale_sdk.bench.quality.arms import Arm
from inferscale_sdk.bench.quality.material import Material, by_position
from inferscale_sdk.bench.quality.model import ScoringModel
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.ingest.fitting import Fitted, fit
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.prompt.base import EncodePlan
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.types import Fact

__all__ = ["Encodings"]


class Encodings:
    """Segments by key, and the records the planner wants. Facts are encoded when first needed.

    Args:
        model: Computes them.
        planner: Makes the requests.
        material: The facts.
        arm: What they are encoded behind.
        preamble: The serving prompt's beginning, encoded.
    """

    def __init__(
        self,
        model: ScoringModel,
        planner: Planner,
        material: Material,
        arm: Arm,
        preamble: Segment,
    ) -> None:
        self._model, self._planner, self._material = model, planner, material
        self._arm, self._preamble = arm, preamble
        self._strategy = arm.strategy(material)
        self.segments: dict[str, Segment] = {preamble.key: preamble}
        self.records: dict[str, EncodingRecord] = {}
        self.own_tokens = 0
        self.prompt_tokens = 0

    def ensure(
        self, facts: Iterable[Fact], progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Encode those that are not yet, in the product's own batches."""
        missing = [fact for fact in facts if fact.id not in self.records]
        if not missing:
            return
        if not (isinstance(self._strategy, RelatedFacts) and self._strategy.group == 1):
            # Groups are of consecutive facts: all are encoded, as the product would.
            missing = [fact for fact in self._material.facts if fact.id not in self.records]
        store = self._material.store
        for batch in self._strategy.batches(by_position(missing), store):
            limit = self._model.model.max_model_len
            for fitted in fit(batch, self._plan, self._strategy, store, limit):
                self._encode(fitted)
                progress(len(fitted.batch.facts))

    def _plan(self, window: Iterable[Fact], facts: Iterable[Fact]) -> EncodePlan:
        return self._planner.plan_encode(
            tuple(window),
            tuple(facts),
            fingerprint=self._model.model.fingerprint,
            partition=self._material.owner.partition,
            capture_preamble=False,
        )

    def _encode(self, fitted: Fitted) -> None:
        plan = fitted.plan
        if plan is None:
            return
        known: Segment | None = self._preamble
        if not self._arm.header:
            plan, known = _without_header(plan, self._preamble.n_tokens), None
        self.segments |= self._model.capture(plan.token_ids, plan.op.captures, known)
        self.prompt_tokens += len(plan.token_ids)
        for fact, span, context in zip(
            fitted.batch.facts, plan.op.captures, plan.context_fact_ids, strict=True
        ):
            self.own_tokens += span.stop - span.start
            self.records[fact.id] = EncodingRecord(
                fact_id=fact.id,
                version=fact.version,
                profile=self._strategy.name,
                key=span.key,
                n_tokens=span.stop - span.start,
                context_fact_ids=context,
                created_at=datetime.now(UTC),
            )


def _without_header(plan: EncodePlan, n_tokens: int) -> EncodePlan:
    """The same facts with nothing before the window: what the paper encodes."""
    spans = tuple(
        span.model_copy(update={"start": span.start - n_tokens, "stop": span.stop - n_tokens})
        for span in plan.op.captures
    )
    op = plan.op.model_copy(update={"captures": spans})
    return replace(plan, token_ids=plan.token_ids[n_tokens:], op=op)
