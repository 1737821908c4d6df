"""Segments in Redis or Valkey."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.tiers.remote_base import ObjectStore, StoredObject, safe_url

__all__ = ["RedisObjects"]

PREFIX = "ifs:"
"""What every key of ours starts with; ``ifs:shards`` is the set of shards."""

_SHARDS = f"{PREFIX}shards"
_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
_BATCH = 500


class RedisObjects(ObjectStore):
    """Objects are strings under ``ifs:<name>``. What a server evicts by itself is just not there.

    Args:
        url: ``redis://``, ``rediss://`` (TLS), ``valkey://``, ``valkeys://`` or ``unix://``.
        connect_timeout_seconds: Limit for making a connection.
        timeout_seconds: Limit for each wait on a connection.

    Raises:
        ConfigurationError: The address is none.
        MissingDependency: The package ``redis`` is not installed.
    """

    def __init__(self, url: str, *, connect_timeout_seconds: float, timeout_seconds: float) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise MissingDependency("redis", "remote", "segments in Redis or Valkey") from None
        scheme, _, rest = url.partition("://")
        self.address = safe_url(url)
        try:
            self._client: Any = redis.Redis.from_url(
                f"{_SCHEMES.get(scheme, scheme)}://{rest}",
                socket_connect_timeout=connect_timeout_seconds,
                socket_timeout=timeout_seconds,
                # Once, at once: a pooled connection may have died of old age.
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.address} is no address of a Redis or Valkey server: {error}"
            ) from None

    def get(self, name: str) -> bytes | None:  # noqa: D102 - as in the contract
        found: bytes | None = self._client.get(PREFIX + name)
        return found

    def head(self, name: str, nbytes: int) -> bytes | None:  # noqa: D102
        found: bytes | None = self._client.getrange(PREFIX + name, 0, nbytes - 1)
        return found or None

    def put(self, name: str, data: bytes, ttl_seconds: float | None) -> int | None:  # noqa: D102
        model, shard, _ = name.split("/", 2)
        pipe = self._client.pipeline(transaction=False)
        pipe.strlen(PREFIX + name)
        pipe.set(PREFIX + name, data, px=None if ttl_seconds is None else round(ttl_seconds * 1e3))
        pipe.sadd(_SHARDS, f"{model}/{shard}")
        replaced: int = pipe.execute()[0]
        return replaced or None

    def size(self, name: str) -> int | None:  # noqa: D102
        found: int = self._client.strlen(PREFIX + name)
        return found or None

    def delete(self, name: str) -> int | None:  # noqa: D102
        pipe = self._client.pipeline(transaction=True)
        pipe.strlen(PREFIX + name)
        pipe.delete(PREFIX + name)
        nbytes, removed = pipe.execute()
        return nbytes if removed else None

    def objects(self, prefix: str) -> Iterator[StoredObject]:  # noqa: D102
        names = self._client.scan_iter(match=f"{PREFIX}{prefix}*", count=_BATCH)
        names = iter(dict.fromkeys(names))  # a scan may give a key twice
        while some := tuple(islice(names, _BATCH)):
            yield from self._described(some)

    def _described(self, keys: tuple[bytes, ...]) -> Iterator[StoredObject]:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.strlen(key)
            pipe.object("IDLETIME", key)
        # A server that evicts by frequency knows no idle times, and answers with an error.
        answers = pipe.execute(raise_on_error=False)
        now = time.time()
        for key, nbytes, idle in zip(keys, answers[::2], answers[1::2], strict=True):
            if isinstance(nbytes, Exception):
                raise nbytes
            if nbytes:
                used_at = now - idle if isinstance(idle, int) else 0.0
                yield StoredObject(key.decode().removeprefix(PREFIX), nbytes, used_at)

    def shards(self) -> list[str]:  # noqa: D102
        found: set[bytes] = self._client.smembers(_SHARDS)
        return sorted(shard.decode() for shard in found)

    def close(self) -> None:  # noqa: D102
        self._client.close()
