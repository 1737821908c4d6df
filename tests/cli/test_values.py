"""Numbers, addresses and folders that cannot be used: of every option of every command."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from inferscale_sdk.cli import values
from inferscale_sdk.cli.app import app
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


def options(*wanted: type) -> Iterator[typing.Any]:
    """Every option of every command that takes one of the wanted types."""
    for path, command in leaves(app):
        hints = typing.get_type_hints(command, include_extras=True)
        for name in inspect.signature(command).parameters:
            kind, *marks = typing.get_args(hints[name]) or (hints[name],)
            if not any(isinstance(mark, typer.models.OptionInfo) for mark in marks):
                continue
            kinds = {kind, *typing.get_args(kind)}
            kinds |= {inner for outer in kinds for inner in typing.get_args(outer)}
            if kinds & set(wanted):
                option = f"--{name.replace('_', '-')}"
                yield pytest.param(path, option, id=" ".join((*path, option)))


def leaves(
    tree: typer.Typer, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    for command in tree.registered_commands:
        name = command.name or command.callback.__name__
        yield (*path, name), command.callback
    for group in tree.registered_groups:
        yield from leaves(group.typer_instance, (*path, group.name))


def test_there_are_options_to_look_at():
    assert len(list(options(int, float))) > 40
    assert len(list(options(Path))) > 15


@pytest.mark.parametrize(("command", "option"), list(options(int, float)))
def test_a_number_that_cannot_be_used_is_named_with_its_range(cli, command, option):
    for value in UNUSABLE_NUMBERS:
        told = cli(*command, f"{option}={value}", code=2).stderr
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
def test_so_is_one_of_a_list(cli, command, option):
    for value in ("9" * 20, "nan", "1.5", "-1"):
        told = cli(*command, f"{option}=5,{value}", code=2).stderr
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
def test_an_address_that_cannot_be_used_is_named(cli, command, address):
    told = cli(*command, f"--base-url={address}", code=2).stderr
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


# -- folders -------------------------------------------------------------------------------

FOLDERS = ("--store", "--path", "--kv", "--kv-path", "--work", "--plots")
READING = [
    ("memory", "list"),
    ("memory", "search", "tea"),
    ("memory", "history", "f1"),
    ("memory", "export"),
    ("memory", "stats"),
    ("memory", "forget", "f1"),
    ("memory", "forget", "--all", "--yes"),
    ("kv", "gc"),
]


@pytest.mark.parametrize(
    ("command", "option"), [p for p in options(Path) if p.values[1] in FOLDERS]
)
def test_no_folder_is_meant_by_no_name_or_by_a_file(cli, command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_text("mine")
    for name, why in (("", "is empty"), (" ", "is empty"), (str(file), "is a file")):
        told = cli(*command, f"{option}={name}", code=2).stderr
        assert option in told and why in told
    told = cli(*command, f"{option}={'a' * 300}", code=2).stderr
    assert option in told and "aaa" in told
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", READING)
def test_reading_and_deleting_make_no_memory(cli, command, tmp_path):
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.mkdir()
    for folder in (empty, missing):
        told = cli(*command, "--store", str(folder), code=2).stderr
        assert "--store" in told and str(folder) in told and "there" in told
    assert list(empty.iterdir()) == [] and not missing.exists()


@pytest.mark.parametrize("command", [("stats",), ("verify",), ("gc",)])
def test_a_kv_folder_that_is_not_there_is_not_a_healthy_one(cli, command, tmp_path):
    cli("memory", "add", "I like tea")
    missing = tmp_path / "missing"
    told = cli("kv", *command, "--path", str(missing), code=2)
    assert "--path" in told.stderr and str(missing) in told.stderr and told.stdout == ""
    assert not missing.exists()


@pytest.mark.parametrize("command", ["list", "search", "export", "stats"])
def test_before_the_first_memory_there_are_none_yet(cli, command, home):
    result = cli("memory", command, *(["tea"] if command == "search" else []))
    assert "no memories yet" in result.stderr and str(home / "memory") in result.stderr
    assert "memory add" in result.stderr
    assert not home.exists()


def test_there_is_nothing_to_forget_before_the_first_memory(cli, home):
    for which in (("f1",), ("--all", "--yes")):
        assert "memory add" in cli("memory", "forget", *which, code=2).stderr
    assert not home.exists()


def test_writing_makes_a_memory_also_in_a_home(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("memory", "add", "I like tea", "--store", "~/new/one")
    assert (tmp_path / "new" / "one" / "facts.db").is_file()
    assert len(cli.json("memory", "list", "--store", "~/new/one")) == 1


# -- texts, and what errors say -------------------------------------------------------------


@pytest.mark.parametrize("texts", [("",), (" \n",), ("tea", ""), ("-",)])
def test_nothing_to_remember_is_an_error_and_stores_nothing(cli, home, texts):
    told = cli("memory", "add", *texts, stdin="\n \n", code=2).stderr
    assert "empty" in told or "no text" in told
    assert not home.exists()


def test_nothing_to_search_for_is_an_error(cli):
    assert "empty" in cli("memory", "search", " ", code=2).stderr


@pytest.mark.parametrize("command", ["forget", "history"])
def test_an_unknown_fact_is_told_in_words(cli, command):
    cli("memory", "add", "I like tea")
    told = cli("memory", command, "nope", "-u", "nora", "--agent", "hal", code=1).stderr
    assert "'nope'" in told and "user 'nora', agent 'hal'" in told
    assert "inferscale memory list" in told
    assert "Namespace(" not in told and "None" not in told
