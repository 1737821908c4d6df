"""Settings of the connector, read once from ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError

__all__ = ["ConnectorConfig"]


class ConnectorConfig(BaseModel):
    """What the operator may set.

    Args:
        disk_path: Folder of the disk tier; ``None`` keeps segments in memory only.
        host_bytes: Budget of the host tier.
        disk_bytes: Budget of the disk tier, ``None`` for no limit.
        load_timeout_seconds: How long a request may wait for its segments to be read from disk
            before it is served with what is there.
        max_reports: How many finished injections are remembered for ``stats``.
        require_probe: Refuse to inject until the rotation has been proved on the loaded model.
        probe_key_tolerance: Largest key deviation, relative to the layer's largest key, that
            rounding may cause.
        rope_theta: Rotary base to use in place of the one in the model's configuration. A wrong
            one fails the probe.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    disk_path: Path | None = None
    host_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    disk_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    load_timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    max_reports: Annotated[int, Field(ge=0)] = 4096
    require_probe: bool = True
    probe_key_tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    rope_theta: Annotated[float, Field(gt=1)] | None = None

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> ConnectorConfig:
        """Validate the mapping vLLM hands over.

        Raises:
            ConfigurationError: An entry is unknown or out of range; the message names it.
        """
        try:
            return cls.model_validate(dict(extra))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"kv_connector_extra_config.{where}: {first['msg']} (got {first.get('input')!r})"
            ) from None

    @property
    def secret(self) -> bytes | None:
        """The server's secret; from the environment only, never from a command line."""
        return settings().server_secret
