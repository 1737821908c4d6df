"""Two small plans that belong together, for tests of engines on doubles."""

from __future__ import annotations

from typing import Any

from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan
from inferscale_sdk.protocol import CaptureSpan, EncodeOp, salt_suffix
from inferscale_sdk.types import Message

__all__ = ["KEYS", "TOKENS", "sample_encode_plan", "sample_prompt_plan"]

KEYS = ("a" * 40, "b" * 40)
TOKENS = tuple(range(100, 120))


def sample_encode_plan() -> EncodePlan:
    """Encodes a preamble of five tokens and a fact of six."""
    captures = (
        CaptureSpan(key=KEYS[0], start=0, stop=5),
        CaptureSpan(key=KEYS[1], start=5, stop=11),
    )
    return EncodePlan(
        token_ids=TOKENS[:11],
        op=EncodeOp(fingerprint="fake-model", captures=captures),
        fact_ids=("fabc",),
        context_fact_ids=((),),
        captures_preamble=True,
    )


def sample_prompt_plan(**changes: Any) -> PromptPlan:
    """Injects the same segments, with nine tokens behind them; anything can be changed."""
    values: dict[str, Any] = {
        "token_ids": TOKENS,
        "segments": (
            PlannedSegment(KEYS[0], 5, "preamble"),
            PlannedSegment(KEYS[1], 6, "fact", "fabc"),
        ),
        "cache_salt": "ifs1:who:" + salt_suffix(KEYS),
        "messages": (Message("system", "notes"), Message("user", "question")),
        "fact_ids": ("fabc",),
        "memory_tokens": 6,
        "fingerprint": "fake-model",
    }
    return PromptPlan(**{**values, **changes})
