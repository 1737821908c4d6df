"""What is compared: the same tokens, several ways to come by their KV.

| arm | KV of the memory | finds in vLLM's own prefix cache |
|---|---|---|
| ``prompt`` | prefilled from text | nothing: the salt is new every time |
| ``repeated`` | prefilled from text | what a prefix cache can find of the same facts, in whatever order the next question puts them |
| ``inject`` | copied from host memory | nothing: the salt is new every time |
| ``live`` | the same but for the best fact, which stays text: what ``Memory`` does by default | nothing |
| ``device``, ``disk``, ``remote`` | copied from that tier | nothing |
| ``cached`` | left over from the same prompt | everything but the last, partly filled block |
| ``mem0`` | what Mem0 finds, prefilled from text | nothing: a question is not asked twice |

``cached`` is the ceiling: no memory system can do better than not having to do anything.
"""  # noqa: E501 - a table

from __future__ import annotations

import secrets
from dataclasses import replace
from enum import StrEnum

from inferscale_sdk.errors import EngineError
from inferscale_sdk.prompt.base import PromptPlan
from inferscale_sdk.protocol import salt_suffix

__all__ = ["BASIC_ARMS", "TIER_ARMS", "Arm", "plan_for"]


class Arm(StrEnum):
    """How the memory's KV comes about."""

    PROMPT = "prompt"
    REPEATED = "repeated"
    INJECT = "inject"
    LIVE = "live"
    DEVICE = "device"
    DISK = "disk"
    REMOTE = "remote"
    CACHED = "cached"
    MEM0 = "mem0"


BASIC_ARMS = (Arm.PROMPT, Arm.INJECT, Arm.CACHED)
"""Text, injection and the ceiling."""

TIER_ARMS = (Arm.INJECT, Arm.LIVE, Arm.DEVICE, Arm.DISK, Arm.REMOTE)
"""Those that inject."""


def plan_for(arm: Arm, plan: PromptPlan, fixed_salt: str) -> PromptPlan:
    """The request of one arm. Call it anew for every request: most salts must be fresh.

    Args:
        arm: Which arm.
        plan: The prompt with its segments, or one without any memory, which is the floor.
        fixed_salt: Under which prompts are kept in vLLM's prefix cache; the same for all requests
            of one run, another in every run.

    Raises:
        EngineError: The plan has memory but no segments, so there is nothing to inject.
    """
    if plan.memory_tokens and not plan.segments and arm in TIER_ARMS:
        raise EngineError(
            "the prompt was planned as plain text, so there is nothing to inject; "
            "`inferscale doctor` says why"
        )
    fresh = secrets.token_hex(16)
    if arm in (Arm.CACHED, Arm.REPEATED):
        return replace(plan, segments=(), cache_salt=f"bench-{arm.value}-{fixed_salt}")
    if arm in (Arm.PROMPT, Arm.MEM0) or not plan.segments:
        return replace(plan, segments=(), cache_salt=f"bench-{arm.value}-{fresh}")
    if arm is Arm.LIVE and len(plan.fact_ids) > 1:  # the best fact stands last
        plan = replace(plan, segments=plan.segments[:-1])
    bound = salt_suffix([segment.key for segment in plan.segments])
    return replace(plan, cache_salt=f"bench-inject-{fresh}:{bound}")
