"""KV of one conversation's facts, made as one arm wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from inferscale_sdk.bench.quality.arms import Arm
from inferscale_sdk.bench.quality.material import Material, by_position
from inferscale_sdk.bench.quality.model import ScoringModel
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.ingest.fitting import Fitted, fit
from inferscale_sdk.ingest.mean import MeanOfWindows
from inferscale_sdk.ingest.readings import FirstReadings
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.windows import WindowStrategy
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
        self._readings = FirstReadings(material.store)
        self.own_tokens = 0
        self.prompt_tokens = 0

    def ensure(
        self, facts: Iterable[Fact], progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Encode those that are not yet, in the product's own batches."""
        missing = [fact for fact in facts if fact.id not in self.records]
        if not missing:
            return
        if not _one_by_one(self._strategy):
            # Groups are of consecutive facts: all are encoded, as the product would.
            missing = [fact for fact in self._material.facts if fact.id not in self.records]
        if self._strategy.first_reading is not None:
            for fitted in self._fitted(self._strategy.first_reading, missing):
                self._read_first(fitted)
        for fitted in self._fitted(self._strategy, missing):
            self._encode(fitted)
            progress(len(fitted.batch.facts))
        for reading in self._readings.by_fact.values():
            self.segments.pop(reading.key, None)
        self._readings = FirstReadings(self._material.store)

    def _fitted(self, strategy: WindowStrategy, facts: Iterable[Fact]) -> Iterator[Fitted]:
        store, limit = self._material.store, self._model.model.max_model_len
        is_first = strategy is self._strategy.first_reading

        def plan(window: Iterable[Fact], facts: Iterable[Fact]) -> EncodePlan:
            return self._planner.plan_encode(
                tuple(window),
                tuple(facts),
                fingerprint=self._model.model.fingerprint,
                partition=self._material.owner.partition,
                capture_preamble=False,
                readings=None if is_first else self._readings.by_fact,
                nonce="bench" if is_first else "",
            )

        for batch in strategy.batches(by_position(tuple(facts)), store):
            yield from fit(batch, plan, strategy, store, limit)

    def _read_first(self, fitted: Fitted) -> None:
        if fitted.plan is not None:
            self._capture(fitted.plan)
            keys = {span.key for span in fitted.plan.op.captures}
            self._readings.take(fitted.batch, fitted.plan, keys)

    def _capture(self, plan: EncodePlan) -> None:
        self.prompt_tokens += len(plan.token_ids)
        known: Segment | None = self._preamble
        if not self._arm.header:
            plan, known = _without_header(plan, self._preamble.n_tokens), None
        found = self._model.capture(plan.token_ids, plan.op.captures, known)
        for span in plan.op.captures:
            if span.beside is not None:
                found[span.key] = self._model.mean(found[span.key], self.segments[span.beside])
        self.segments |= found

    def _encode(self, fitted: Fitted) -> None:
        plan = fitted.plan
        if plan is None:
            return
        self._capture(plan)
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


def _one_by_one(strategy: WindowStrategy) -> bool:
    """Whether each fact is captured alone, so that those which nobody needs need not be."""
    if isinstance(strategy, MeanOfWindows):
        return _one_by_one(strategy.first_reading) and _one_by_one(strategy.second_reading)
    return isinstance(strategy, RelatedFacts) and strategy.group == 1


def _without_header(plan: EncodePlan, n_tokens: int) -> EncodePlan:
    """The same facts with nothing before the window: what the paper encodes."""
    spans = tuple(
        span.model_copy(update={"start": span.start - n_tokens, "stop": span.stop - n_tokens})
        for span in plan.op.captures
    )
    op = plan.op.model_copy(update={"captures": spans})
    return replace(plan, token_ids=plan.token_ids[n_tokens:], op=op)
