"""What both model wrappers are built from, beside the wrapper of openai they extend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inferscale_sdk.bridge import ChatBridge
from langchain_inferscale._setup import bridge_of, client_values

__all__ = ["InferScaleFields"]


class InferScaleFields(BaseModel):
    """Fields, their checks, and the bridge. The first base of a wrapper, so that it goes before."""

    memory: Any = Field(default=None, exclude=True, repr=False)
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    app_id: str | None = None
    inject: bool = True

    model_name: str = Field(default="", alias="model")

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _inferscale_client(cls, values: Any) -> Any:
        return client_values(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _inferscale_model(self) -> InferScaleFields:
        if not self.model_name:
            self.model_name = self.bridge.engine.info().model
        return self

    @cached_property
    def bridge(self) -> ChatBridge:
        """Where handles become facts."""
        base_url, api_key = (getattr(self, f"openai_api_{name}") for name in ("base", "key"))
        return bridge_of(self.memory, str(base_url), api_key)

    def may_inject(self, model: str) -> bool:
        """Whether stored KV may be used; another model, such as a LoRA adapter, has its own."""
        return self.inject and model == self.bridge.engine.info().model

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Which constructor argument is a secret, and where it may come from."""
        return {"openai_api_key": "INFERSCALE_API_KEY"}
