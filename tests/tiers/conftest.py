"""A real Redis or Valkey server for the whole session, where one is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferscale_sdk.testing.redis_server import BINARIES, RedisServer, find_redis, running_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip(f"none of {', '.join(BINARIES)} is installed")
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server
