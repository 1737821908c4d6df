"""Mistyped folders are no empty ones, reading makes none, and errors say what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from option_walk import options, refused

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
def test_no_folder_is_meant_by_no_name_or_by_a_file(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_text("mine")
    for name, why in (("", "is empty"), (" ", "is empty"), (str(file), "is a file")):
        told = refused(*command, f"{option}={name}")
        assert option in told and why in told
    told = refused(*command, f"{option}={'a' * 300}")
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
