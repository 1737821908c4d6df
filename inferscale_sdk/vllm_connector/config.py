"""Settings of the connector, read once from ``kv_connector_extra_config``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.tiers.orders import Eviction
from inferscale_sdk.tiers.tiered import WritePolicy

__all__ = ["ConnectorConfig"]

_PASSWORD = re.compile(r"//[^/]*:[^@]+@|[?&]password=", re.IGNORECASE)
_SECRET_OPTION = re.compile(
    r"secret|passw|account_key|connection_string|(^|_)token$", re.IGNORECASE
)
_NO_SECRETS = ("anon", "cloud", "google_default")  # what gcsfs takes as tokens beside real ones


class ConnectorConfig(BaseModel):
    """What the operator may set.

    Args:
        disk_path: Folder of the disk tier; ``None`` keeps segments in memory only.
        host_bytes: Budget of the host tier.
        disk_bytes: Budget of the disk tier, ``None`` for no limit.
        device_bytes: Size of an arena in the engine's memory, before the host tier; allocated at
            start, ``None`` for none. On a CPU it lies in host memory.
        remote_url: The remote tier: ``redis://``, ``valkey://``, or whatever fsspec understands.
            May not hold a password: ``INFERSCALE_REMOTE_URL`` may, and is used without this.
        remote_bytes: Budget of the remote tier, ``None`` for no limit.
        remote_ttl_seconds: How long segments are kept there, ``None`` for ever.
        remote_timeout_seconds: How long one read or write there may take.
        remote_connect_timeout_seconds: How long connecting to it may take.
        remote_cooldown_seconds: How long it is left alone after failing twice in a row.
        remote_options: Passed to fsspec's file system. May hold no secrets: those are left to its
            own environment variables or files.
        write_policy: ``through``: captures are in every tier before they are reported.
            ``back``: written by threads of their own. By default through to disk, back to remote.
        write_queue_bytes: How much may wait to be written to one tier; then captures wait.
        eviction: Who goes first in a full tier: ``lru``, used longest ago; ``cost``, cheapest to
            encode again, with age.
        owner_bytes: What one owner may have in each tier; more evicts that owner's own first.
        host_dtype: How host memory keeps keys and values.
        storage_dtype: How disk and remote keep them. Stores of different dtypes are apart.
        allow_int4: Allow ``int4``, which is measurably lossy.
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
    device_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    remote_url: str | None = None
    remote_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    remote_ttl_seconds: Annotated[float, Field(gt=0)] | None = None
    remote_timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 3.0
    remote_connect_timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 1.0
    remote_cooldown_seconds: Annotated[float, Field(gt=0)] = 15.0
    remote_options: dict[str, Any] = Field(default_factory=dict)
    write_policy: WritePolicy | None = None
    write_queue_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    eviction: Eviction = "lru"
    owner_bytes: Annotated[int, Field(ge=1 << 10)] | None = None
    host_dtype: StorageDtype = StorageDtype.AS_CACHE
    storage_dtype: StorageDtype = StorageDtype.AS_CACHE
    allow_int4: bool = False
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
            # What leads to the remote tier may hold secrets.
            given = "" if "remote" in where or not where else f" (got {first.get('input')!r})"
            raise ConfigurationError(
                f"kv_connector_extra_config.{where}: {first['msg']}{given}"
            ) from None

    @field_validator("remote_url")
    @classmethod
    def _no_password(cls, url: str | None) -> str | None:
        if url is not None and _PASSWORD.search(url):
            raise ValueError(
                "it holds a password, and command lines and logs are read by others; "
                "set INFERSCALE_REMOTE_URL in the server's environment instead"
            )
        return url

    @field_validator("remote_options")
    @classmethod
    def _no_secret(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            if _SECRET_OPTION.search(name) and value not in _NO_SECRETS:
                raise ValueError(
                    f"{name!r} is a secret, and command lines and logs are read by others; leave "
                    "it to the file system's own environment variables or files"
                )
        return options

    @model_validator(mode="after")
    def _int4_is_meant(self) -> Self:
        for name in ("host_dtype", "storage_dtype"):
            if getattr(self, name) is StorageDtype.INT4 and not self.allow_int4:
                raise ValueError(
                    f"{name}='int4' is measurably lossy; use 'int8', or set allow_int4 to true"
                )
        return self

    @property
    def secret(self) -> bytes | None:
        """The server's secret; from the environment only, never from a command line."""
        return settings().server_secret

    @property
    def remote_address(self) -> str | None:
        """Where the remote tier is, password included; ``None`` without one."""
        return self.remote_url or settings().remote_url

    @property
    def has_lower_tier(self) -> bool:
        """Whether a segment that does not fit into memory is kept elsewhere."""
        return self.disk_path is not None or self.remote_address is not None
