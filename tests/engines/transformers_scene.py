"""Plans for the embedded engine on a small random model."""

from __future__ import annotations

from typing import Any

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.engines.transformers import TransformersEngine
from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan
from inferscale_sdk.protocol import CaptureSpan, EncodeOp

TOKENS = tuple((11 * i * i + 5 * i) % 250 for i in range(120))
PREAMBLE, FACT = "a" * 40, "b" * 40
ENDLESS = {"ignore_eos": True}
ANSWER = Sampling(max_tokens=8, extra=ENDLESS)


def encode_plan(engine: TransformersEngine, **changes: Any) -> EncodePlan:
    captures = (
        CaptureSpan(key=PREAMBLE, start=0, stop=30),
        CaptureSpan(key=FACT, start=30, stop=70),
    )
    op = EncodeOp(**{"fingerprint": engine.info().fingerprint, "captures": captures, **changes})
    return EncodePlan(TOKENS, op, ("f",), ((),), captures_preamble=True)


def prompt_plan(engine: TransformersEngine, **changes: Any) -> PromptPlan:
    values: dict[str, Any] = {
        "token_ids": TOKENS,
        "segments": (
            PlannedSegment(PREAMBLE, 30, "preamble"),
            PlannedSegment(FACT, 40, "fact", "f"),
        ),
        "fact_ids": ("f",),
        "fingerprint": engine.info().fingerprint,
    }
    return PromptPlan(**{**values, **changes})
