"""Numbers and addresses that cannot be used: of every option of every command."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import typer
from option_walk import options, refused

from inferscale_sdk.cli import values
from inferscale_sdk.config import settings

UNUSABLE_NUMBERS = ("nan", "inf", "-inf", "1e300", "-1e300", "9" * 20, "9" * 5000, "five", "")
UNUSABLE_ADDRESSES = (
    "http://[::1",
    "http://host:port",
    "http://host:99999",
    "http://host:0",
    "http://a b",
    "http://.x",
    f"http://{'a' * 70}.x",
    "host:8000",
    "ftp://host",
    "http://",
    "",
)


def test_there_are_options_to_look_at():
    assert len(list(options(int, float))) > 40
    assert len(list(options(Path))) > 15


@pytest.mark.parametrize(("command", "option"), list(options(int, float)))
def test_a_number_that_cannot_be_used_is_named_with_its_range(command, option):
    for value in UNUSABLE_NUMBERS:
        told = refused(*command, f"{option}={value}")
        assert option in told and f"'{value[:20]}" in told, value
        assert " number from " in told and " to " in told, value


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("bench", "ttft"), "--k"),
        (("bench", "throughput"), "--users"),
        (("bench", "throughput"), "--output-tokens"),
        (("bench", "scale"), "--sizes"),
        (("bench", "write"), "--k"),
    ],
)
def test_so_is_one_of_a_list(command, option):
    for value in ("9" * 20, "nan", "1.5", "-1"):
        told = refused(*command, f"{option}=5,{value}")
        assert option in told and f"'{value}'" in told and " to " in told


@pytest.mark.parametrize(
    "command",
    [
        ("kv", "stats"),
        ("kv", "gc"),
        ("chat",),
        ("doctor",),
        ("memory", "forget", "f1"),
        ("bench", "ttft"),
        ("bench", "throughput"),
        ("bench", "ingest"),
    ],
)
@pytest.mark.parametrize("address", UNUSABLE_ADDRESSES)
def test_an_address_that_cannot_be_used_is_named(command, address):
    told = refused(*command, f"--base-url={address}")
    assert "--base-url" in told and repr(address) in told and "http://127.0.0.1:8000" in told


@pytest.mark.parametrize("address", [address for address in UNUSABLE_ADDRESSES if address])
def test_also_where_the_environment_names_it(cli, address, monkeypatch):
    monkeypatch.setenv("INFERSCALE_BASE_URL", address)
    settings.cache_clear()
    told = cli("kv", "stats", code=2).stderr
    assert repr(address) in told and "http://127.0.0.1:8000" in told


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://[::1]:8000/v1", "http://kv-1"])
def test_addresses_that_can_be_used(address):
    assert values.http_address(address) == address


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("chat",), "--user"),
        (("memory", "add", "I like tea"), "--user"),
        *((("memory", "list"), option) for option in ("--user", "--agent", "--run", "--app")),
    ],
)
@pytest.mark.parametrize("nobody", ["", "  ", "x" * 257, "\udcff"], ids=ascii)
def test_an_id_that_nobody_can_have_is_wrong_usage(command, option, nobody):
    told = refused(*command, f"{option}={nobody}")
    assert option in told and "it " in told


def test_the_ends_of_a_range_are_in_it():
    parse = values.number(0, 2.5)["parser"]
    assert [parse(text) for text in ("0", "2.5", " 1e0 ")] == [0, 2.5, 1]
    parse = values.whole(-1, 3)["parser"]
    assert [parse(text) for text in ("-1", 3)] == [-1, 3]
    for unusable in ("3.0", "", math.nan):
        with pytest.raises(typer.BadParameter):
            values.whole(0, 3)["parser"](str(unusable))


@pytest.mark.parametrize(
    ("size", "usable"), [("0.0000001", False), ("0.001", True), ("1000000", True), ("-1", False)]
)
def test_sizes_of_tiers_are_those_the_connector_takes(size, usable):
    from inferscale_sdk.cli import serve
    from inferscale_sdk.vllm_connector.config import ConnectorConfig

    parse = serve._SIZE["parser"]
    if not usable:
        with pytest.raises(typer.BadParameter):
            parse(size)
        return
    nbytes = serve._bytes(parse(size), 1 << 30)
    owner = serve._bytes(parse(size), 1 << 20)
    ConnectorConfig(host_bytes=nbytes, disk_bytes=nbytes, device_bytes=nbytes, owner_bytes=owner)


@pytest.mark.parametrize("command", [("serve",), ("doctor", "--model"), ("chat", "--model")])
@pytest.mark.parametrize("model", ["/nonexistent/model", "./nowhere", "~/no such model", ""])
def test_a_model_folder_that_is_not_there_is_told_before_anything_is_started(cli, command, model):
    result = cli(*command, model, code=2)
    assert "does not exist" in result.stderr and "bundled" in result.stderr
    assert "Traceback" not in result.stderr
