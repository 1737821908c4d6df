"""The connector's settings: what is refused, and which tiers they open."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import connector_harness  # noqa: F401 - imports vllm, whose own warnings it switches off
import pytest
import torch

from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.kv.quantize import StorageDtype
from inferscale_sdk.kv.rows import Rows
from inferscale_sdk.testing.tier_suite import LAYOUT, make_key, make_segment
from inferscale_sdk.tiers.arena import Arena
from inferscale_sdk.tiers.shelves import PlainShelf, make_shelf
from inferscale_sdk.tiers.tiered import TieredStore
from inferscale_sdk.tiers.write_behind import WriteBehind
from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.metadata import Captured
from inferscale_sdk.vllm_connector.storage import (
    DeviceShelf,
    division_of,
    locate_below,
    open_below,
    tier_figures,
)

KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("INFERSCALE_KV_KEY", "INFERSCALE_REMOTE_URL"):
        monkeypatch.delenv(name, raising=False)
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def config(**extra: Any) -> ConnectorConfig:
    return ConnectorConfig.from_extra(extra)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"remote_url": "redis://:hunter2@host"}, "set INFERSCALE_REMOTE_URL"),
        ({"remote_url": "redis://me:hunter2@host/0"}, "set INFERSCALE_REMOTE_URL"),
        ({"remote_url": "redis://host?password=hunter2"}, "set INFERSCALE_REMOTE_URL"),
        ({"remote_url": ["hunter2"]}, "remote_url"),
        ({"remote_options": "hunter2"}, "remote_options"),
        ({"remote_options": {"key": "id", "secret": "hunter2"}}, "'secret' is a secret"),
        ({"remote_options": {"token": "hunter2"}}, "'token' is a secret"),
        ({"remote_options": {"password": {"a": "hunter2"}}}, "'password' is a secret"),
        ({"storage_dtype": "int4"}, "set allow_int4"),
        ({"host_dtype": "int4"}, "set allow_int4"),
        ({"storage_dtype": "int3"}, "'int3'"),
        ({"eviction": "random"}, "'lru' or 'cost'"),
        ({"write_policy": "around"}, "'through' or 'back'"),
        ({"device_bytes": 5}, "device_bytes"),
        ({"owner_bytes": -1}, "owner_bytes"),
        ({"remote_timeout_seconds": 0}, "remote_timeout_seconds"),
    ],
)
def test_what_cannot_be_is_refused_and_secrets_are_not_quoted(
    extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        config(**extra)
    assert "hunter2" not in str(caught.value)


def test_the_remote_tier_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config().remote_address is None
    assert not config().has_lower_tier
    monkeypatch.setenv("INFERSCALE_REMOTE_URL", "redis://:pw@host")
    settings.cache_clear()
    assert config().remote_address == "redis://:pw@host"
    assert config(remote_url="redis://other").remote_address == "redis://other"
    assert config().has_lower_tier


def test_without_lower_tiers_nothing_is_opened() -> None:
    assert open_below(config(), "model", 0) is None
    assert tier_figures(None, PlainShelf()) == []


def test_disk_and_remote_are_opened_as_configured(tmp_path: Path) -> None:
    remote = (tmp_path / "far").as_uri()
    for policy, disk_behind, remote_behind in (
        (None, False, True),
        ("through", False, False),
        ("back", True, True),
    ):
        below = open_below(
            config(disk_path=str(tmp_path / "near"), remote_url=remote, write_policy=policy,
                   storage_dtype="int8"),
            "model", 0,
        )  # fmt: skip
        assert isinstance(below, TieredStore)
        assert [isinstance(tier, WriteBehind) for tier in below.tiers] == [
            disk_behind,
            remote_behind,
        ]
        assert {tier.storage for tier in below.tiers} == {StorageDtype.INT8}
        below.put(make_segment(policy))
        below.close()
    again = open_below(config(remote_url=remote, storage_dtype="int8"), "model", 0)
    assert again is not None
    assert {make_key(policy) for policy in (None, "through", "back")} == set(again.keys())
    again.close()


def test_files_are_encrypted_with_the_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("INFERSCALE_KV_KEY", KEY)
    settings.cache_clear()
    below = open_below(config(disk_path=str(tmp_path)), "model", 0)
    assert below is not None
    below.put(make_segment("a"))
    (file,) = tmp_path.rglob("*.ifs")
    assert file.read_bytes().startswith(b"\x89IFSENC\n")
    assert below.get(make_key("a")) == make_segment("a")
    monkeypatch.delenv("INFERSCALE_KV_KEY")
    settings.cache_clear()
    plain = open_below(config(disk_path=str(tmp_path)), "model", 0)
    assert plain is not None
    assert plain.get(make_key("a")) is None
    assert plain.stats().wrong_key == 1


def test_another_division_over_ranks_finds_nothing(tmp_path: Path) -> None:
    """Two heads on four ranks: rank 1 has the first, and on two ranks it has the second."""

    def divided(tensor: int, pipeline: int) -> str:
        parallel: Any = SimpleNamespace(
            tensor_parallel_size=tensor, pipeline_parallel_size=pipeline
        )
        return division_of(parallel)

    assert divided(1, 1) == ""
    settings_ = config(
        disk_path=str(tmp_path / "near"), remote_url=(tmp_path / "far").as_uri(),
        write_policy="through",
    )  # fmt: skip
    segment = make_segment("a")
    stored = [divided(4, 1), divided(2, 1), divided(2, 2), divided(1, 1)]
    for n, division in enumerate(stored):
        below = open_below(settings_, "model", 1, division=division)
        assert below is not None
        assert below.get(segment.key) is None
        below.put(segment)
        assert below.get(segment.key) == segment
        assert below.locate([segment.key]) == {segment.key}
        if n == len(stored) - 1:
            assert below.delete_everywhere(segment.key) == 2 * len(stored)
            assert below.locate([segment.key]) == set()
        below.close()


def test_where_keys_lie_below(tmp_path: Path) -> None:
    settings_ = config(
        disk_path=str(tmp_path / "near"), remote_url=(tmp_path / "far").as_uri(),
        write_policy="through",
    )  # fmt: skip
    below = open_below(settings_, "model", 0)
    assert isinstance(below, TieredStore)
    below.put(make_segment("a"))
    below.tiers[1].put(make_segment("b"))
    keys = [make_key(name) for name in "abc"]
    assert locate_below(below, settings_, keys) == {
        keys[0]: ("disk", "remote"),
        keys[1]: ("remote",),
    }
    figures = {tier["name"]: tier["segments"] for tier in tier_figures(below, PlainShelf())}
    assert figures == {"disk": 1, "remote": 2}
    below.close()


def test_a_remote_tier_that_is_away_is_an_unknown_place(tmp_path: Path) -> None:
    settings_ = config(remote_url="redis://127.0.0.1:1", remote_connect_timeout_seconds=0.2)
    below = open_below(settings_, "model", 0)
    assert below is not None
    assert locate_below(below, settings_, [make_key("a")]) == {make_key("a"): ("unknown",)}
    below.close()


@pytest.mark.parametrize("host_dtype", ["as_cache", "int8"])
def test_the_device_holds_what_is_used_and_answers_as_host_memory_does(host_dtype: str) -> None:
    host = make_shelf(StorageDtype(host_dtype))
    arena = Arena(LAYOUT, 10 * LAYOUT.bytes_per_token)
    shelf = DeviceShelf(host, arena)
    for name in "abc":
        shelf[make_key(name)] = make_segment(name)  # 4 tokens each
    assert not any(shelf.on_device(key) for key in shelf)
    first = shelf[make_key("a")]
    assert shelf.on_device(make_key("a"))
    assert shelf[make_key("a")] == first == host[make_key("a")]
    shelf[make_key("b")]
    shelf[make_key("c")]
    assert not shelf.on_device(make_key("a")), "there is room for two"
    assert len(shelf) == 3
    stats = shelf.device_stats()
    assert (stats.name, stats.hits, stats.evictions) == ("device", 1, 1)
    newer = make_segment("c", variant=1)
    shelf[newer.key] = newer
    assert shelf[newer.key] == host[newer.key]
    assert shelf.discard(newer.key)
    assert not shelf.on_device(newer.key)
    with pytest.raises(KeyError):
        shelf[newer.key]
    large = make_segment("large", n_tokens=11)
    shelf[large.key] = large
    assert shelf[large.key] == host[large.key]
    shelf.clear()
    assert arena.free_tokens == arena.capacity_tokens
    assert [tier["name"] for tier in tier_figures(None, shelf)] == ["device"]


def test_what_is_lent_at_once_does_not_push_itself_out() -> None:
    host = make_shelf(StorageDtype.AS_CACHE)
    shelf = DeviceShelf(host, Arena(LAYOUT, 10 * LAYOUT.bytes_per_token))
    keys = [make_key(name) for name in "abcd"]
    for name in "abcd":
        shelf[make_key(name)] = make_segment(name)  # 4 tokens each: two fit
    shelf[keys[3]]
    with shelf.lent([*keys[:3], keys[0]]) as lent:
        assert list(lent) == keys[:3]
        assert [isinstance(one, Rows) for one in lent.values()] == [True, True, False]
        for key, one in lent.items():
            assert torch.equal(one.take(0, 4), host[key].data)
            assert (one.origin, one.nbytes) == (host[key].origin, host[key].nbytes)
    shelf[keys[3]]
    assert shelf.on_device(keys[3]), "what was lent may go again"
    with pytest.raises(KeyError), shelf.lent([keys[0], make_key("lacking")]):
        pass
    with shelf.lent(keys[:2]) as lent:
        assert all(isinstance(one, Rows) for one in lent.values()), "nothing stayed pinned"


def captured(name: str, owner: str = "", encode_tokens: int = 10, nbytes: int = 100) -> Captured:
    return Captured("r", make_key(name), n_tokens=4, token_digest="d", nbytes=nbytes, owner=owner,
                    encode_tokens=encode_tokens)  # fmt: skip


def test_the_scheduler_half_evicts_an_owner_s_own_first() -> None:
    index = SegmentIndex(1000, owner_bytes=250)
    index.add(captured("other", "0b"))
    for name in "abc":
        assert index.add(captured(name, "0a")) == ""
    _, evicted = index.take_commands()
    assert evicted == (make_key("a"),)
    assert index.get(make_key("other")) is not None
    assert index.add(captured("huge", "0a", nbytes=300)) == "store_failed"
    assert index.get(make_key("b")) is not None


def test_the_scheduler_half_keeps_what_is_dear_to_encode() -> None:
    index = SegmentIndex(300, eviction="cost")
    index.add(captured("dear", encode_tokens=900))
    for name in "abcd":
        index.add(captured(name, encode_tokens=10))
    assert index.get(make_key("dear")) is not None
    _, evicted = index.take_commands()
    assert evicted == (make_key("a"), make_key("b"))
