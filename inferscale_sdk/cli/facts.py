"""How facts are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferscale_sdk.types import Fact

__all__ = ["fact_dict"]


def fact_dict(fact: Fact) -> dict[str, Any]:
    """A fact as a JSON object."""
    owner = fact.namespace
    return {
        "id": fact.id,
        "version": fact.version,
        "text": fact.text,
        "speaker": fact.speaker,
        "event_time": fact.event_time,
        "created_at": fact.created_at,
        "updated_at": fact.updated_at,
        "conversation_id": fact.conversation_id,
        "source": fact.source,
        "metadata": dict(fact.metadata),
        "user_id": owner.user_id,
        "agent_id": owner.agent_id,
        "run_id": owner.run_id,
        "app_id": owner.app_id,
    }
