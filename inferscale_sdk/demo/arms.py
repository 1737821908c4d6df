"""The three requests that are compared: the same tokens, three ways to come by their KV.

| arm | KV of the memory | finds in vLLM's own prefix cache |
|---|---|---|
| ``prompt`` | prefilled from text | nothing: the salt is new every time |
| ``inject`` | copied from stored segments | nothing: the salt is new every time |
| ``cached`` | left over from the same prompt | everything but the last, partly filled block |

``cached`` is the ceiling: no memory system can do better than not having to do anything.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from enum import StrEnum

from inferscale_sdk.errors import EngineError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.protocol import salt_suffix

__all__ = ["Arm", "plan_for"]


class Arm(StrEnum):
    """How the memory's KV comes about."""

    PROMPT = "prompt"
    INJECT = "inject"
    CACHED = "cached"


def plan_for(arm: Arm, plan: PromptPlan, fixed_salt: str) -> PromptPlan:
    """The request of one arm. Call it anew for every request: two of the salts must be fresh.

    Args:
        arm: Which arm.
        plan: The prompt with its segments.
        fixed_salt: Under which the ceiling's prompt is kept in vLLM's prefix cache; the same for
            all requests of one run, another in every run.

    Raises:
        EngineError: The plan has no segments, so there is nothing to inject.
    """
    if not plan.segments:
        raise EngineError(
            "the prompt was planned as plain text, so there is nothing to inject; "
            "`inferscale doctor` says why"
        )
    fresh = secrets.token_hex(16)
    if arm is Arm.PROMPT:
        return replace(plan, segments=(), cache_salt=f"demo-prompt-{fresh}")
    if arm is Arm.CACHED:
        return replace(plan, segments=(), cache_salt=f"demo-cached-{fixed_salt}")
    bound = salt_suffix([segment.key for segment in plan.segments])
    return replace(plan, cache_salt=f"demo-inject-{fresh}:{bound}")
