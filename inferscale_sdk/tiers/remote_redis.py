"""Segments in Redis or Valkey."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.tiers.remote_base import ObjectStore, StoredObject, safe_url

__all__ = ["RedisObjects"]

logger = logging.getLogger(__name__)

PREFIX = "ifs:"
"""What every key of ours starts with; ``ifs:shards`` is the set of shards, with marks in it."""

_SHARDS = f"{PREFIX}shards"
_BEGUN, _DONE = "begun:", "done:"
_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
_BATCH = 500
_SCAN_BATCH = 5000


class RedisObjects(ObjectStore):
    """Objects are strings under ``ifs:<name>``. What a server evicts by itself is just not there.

    A server that evicts any key may evict the set of shards, too, and the next write would begin
    another one. So the set counts only with the two marks of a search through all keys, one from
    before and one from after it; where they are missing the keys are searched again.

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
        self._refused: type[Exception] = redis.ResponseError
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
        # At once: nobody finds an object whose shard is not in the set.
        pipe = self._client.pipeline(transaction=True)
        pipe.strlen(PREFIX + name)
        pipe.set(PREFIX + name, data, px=None if ttl_seconds is None else round(ttl_seconds * 1e3))
        pipe.sadd(_SHARDS, f"{model}/{shard}")
        replaced: int = pipe.execute()[0]
        return replaced or None

    def size(self, name: str) -> int | None:  # noqa: D102
        found: int = self._client.strlen(PREFIX + name)
        return found or None

    def delete(self, name: str) -> int | None:  # noqa: D102
        # No transaction: a server whose memory is full refuses those, and lets keys be deleted.
        pipe = self._client.pipeline(transaction=False)
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
        members = self._members()
        begun, done = (
            {member.removeprefix(mark) for member in members if member.startswith(mark)}
            for mark in (_BEGUN, _DONE)
        )
        if not begun & done:
            members = self._searched() | self._members()
        return sorted(member for member in members if "/" in member)

    def _members(self) -> set[str]:
        return {member.decode() for member in self._client.smembers(_SHARDS)}

    def _searched(self) -> set[str]:
        """The shards of all keys. Those of objects that are written meanwhile may be missing."""
        mark = secrets.token_hex(8)
        self._note(_BEGUN + mark)
        found = set()
        for key in self._client.scan_iter(match=f"{PREFIX}*", count=_SCAN_BATCH):
            model, _, rest = key.decode().removeprefix(PREFIX).partition("/")
            shard, _, name = rest.partition("/")
            if name:
                found.add(f"{model}/{shard}")
        # If the set is gone again by now, so is the first mark, and this one alone says nothing.
        self._note(_DONE + mark, *found)
        return found

    def _note(self, *members: str) -> None:
        try:
            self._client.sadd(_SHARDS, *members)
        except self._refused as error:  # a full server still lets things be found and deleted
            logger.debug("%s keeps no list of shards: %s", self.address, error)

    def close(self) -> None:  # noqa: D102
        self._client.close()
