"""From an address to a remote store, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.tiers.remote_base import ObjectStore

__all__ = ["RemoteLimits", "open_objects"]

_REDIS_SCHEMES = ("redis://", "rediss://", "valkey://", "valkeys://", "unix://")


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """How long a remote store may take.

    Args:
        connect_timeout_seconds: For making a connection.
        timeout_seconds: For one read, write or deletion as a whole.
        cooldown_seconds: How long a store that failed twice in a row is left alone.
        ttl_seconds: How long segments are kept after they were written, ``None`` for ever.

    Raises:
        ConfigurationError: One is not positive.
    """

    connect_timeout_seconds: float = 1.0
    timeout_seconds: float = 3.0
    cooldown_seconds: float = 15.0
    ttl_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect_timeout_seconds", "timeout_seconds", "cooldown_seconds"):
            self._check(name, getattr(self, name))
        if self.ttl_seconds is not None:
            self._check("ttl_seconds", self.ttl_seconds)

    @staticmethod
    def _check(name: str, value: float) -> None:
        if not value > 0:
            raise ConfigurationError(f"remote {name}={value} must be positive")


def open_objects(
    url: str, limits: RemoteLimits | None = None, options: Mapping[str, Any] | None = None
) -> ObjectStore:
    """The store behind an address: Redis and Valkey by their schemes, all else by fsspec.

    Nothing is sent yet. ``options`` are fsspec's.

    Raises:
        ConfigurationError: The address is none, or a package is missing.
    """
    limits = limits or RemoteLimits()
    if url.startswith(_REDIS_SCHEMES):
        from inferscale_sdk.tiers.remote_redis import RedisObjects

        return RedisObjects(
            url,
            connect_timeout_seconds=limits.connect_timeout_seconds,
            timeout_seconds=limits.timeout_seconds,
        )
    from inferscale_sdk.tiers.remote_fsspec import FsspecObjects

    return FsspecObjects(url, options, ttl_seconds=limits.ttl_seconds)
