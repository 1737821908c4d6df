"""``inferscale memory forget --verify``: the proof, and that it sees what is left."""

from __future__ import annotations

import json
import sqlite3

import pytest

from inferscale_sdk.cli.session import kv_folder, memory_folder
from inferscale_sdk.errors import EngineError, EngineUnavailable, StoreError
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.deletions import DeletionLog

SECRET = "zanzibar xylophone 8812"
URL = "http://127.0.0.1:9"


@pytest.fixture
def facts(home, fake_engine):
    """Three facts with vectors, terms and KV, the second one's window holding the first."""
    with Memory(
        fake_engine,
        path=memory_folder(),
        embedder=FakeEmbedder(),
        window=PrecedingTurns(),
        background=False,
    ) as memory:
        facts = memory.add(
            ["I like tea", f"My {SECRET} is in the attic", "I live in Porto"], user_id="me"
        )
        memory.search("xylophone", user_id="me")
        assert memory.wait_encoded()
    return facts


def left(report):
    return {place["name"]: place["left"] for place in report["places"]}


def test_everything_is_gone_from_every_place(cli, facts, fake_engine):
    before = set(fake_engine.segments)
    report = cli.json("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    assert report["forgotten"] == 1 and report["left"] == 0
    assert all(place["checked"] for place in report["places"])
    assert {
        "facts",
        "history",
        "KV ledger",
        "recall items",
        "recall vectors",
        "recall postings",
        "bytes of the files",
        "KV on the server",
    } <= left(report).keys()
    # Its own segment, and that of the fact encoded behind it.
    assert len(before - set(fake_engine.segments)) == 2
    for path in memory_folder().iterdir():
        assert b"xylophone" not in path.read_bytes()


def test_everything_of_a_user(cli, facts, fake_engine):
    cli("memory", "forget", facts[0].id)  # softly, before
    report = cli.json("memory", "forget", "--all", "--yes", "--hard", "--verify", "--base-url", URL)
    assert (report["forgotten"], report["left"]) == (3, 0)


def test_the_history_must_go_as_well(cli, facts):
    assert "--hard" in cli("memory", "forget", facts[1].id, "--verify", code=2).stderr


def test_a_table_for_people(cli, facts):
    shown = cli("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL).stdout
    assert "bytes of the files" in shown and "KV on the server" in shown
    assert "xylophone" not in shown


def test_a_server_that_keeps_a_segment_is_found_out(cli, facts, fake_engine, monkeypatch):
    monkeypatch.setattr(fake_engine, "forget", lambda keys: len(keys))
    report = cli.json(
        "memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL, code=1
    )
    assert left(report)["KV on the server"] == 2


def test_a_server_that_did_not_take_the_deletion_proves_nothing(
    cli, facts, fake_engine, monkeypatch
):
    """Its remote tier is away: it has no segment to show, and has dropped none there either."""

    def refuse(keys):
        raise EngineError("the server could not remove 2 segments from every tier")

    monkeypatch.setattr(fake_engine, "forget", refuse)
    monkeypatch.setattr(fake_engine, "locate", lambda keys: {})
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    report = cli.json(*args, code=1)
    server = next(place for place in report["places"] if place["name"] == "KV on the server")
    assert (server["left"], server["note"]) == (2, "2 not dropped yet")


def test_a_server_that_cannot_be_asked_proves_nothing(cli, facts, fake_engine):
    fake_engine.faults.unavailable = True
    result = cli("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL, code=1)
    assert "not asked" in result.stdout and "dropped later" in result.stderr
    assert EngineUnavailable.__name__ in result.stdout


def test_a_server_that_is_not_there_proves_nothing_even_without_kv(cli, home, fake_engine):
    (fact,) = cli.json("memory", "add", "I like tea")
    fake_engine.faults.unavailable = True
    args = ("memory", "forget", fact["id"], "--hard", "--verify", "--base-url", URL)
    report = cli.json(*args, code=1)
    assert report["proved"] is False


def test_a_second_server_is_asked_for_what_the_first_one_dropped_before(cli, facts, fake_engine):
    """It may have read the same segments from a store that both share."""
    held = dict(fake_engine.segments)
    cli("memory", "forget", facts[1].id, "--base-url", URL)
    dropped = held.keys() - fake_engine.segments.keys()
    assert dropped
    fake_engine.segments.update(held)  # the second one
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    report = cli.json(*args)
    assert report["proved"] is True
    assert not dropped & fake_engine.segments.keys()


def test_a_second_server_that_keeps_them_is_found_out(cli, facts, fake_engine, monkeypatch):
    held = dict(fake_engine.segments)
    cli("memory", "forget", facts[1].id, "--base-url", URL)
    fake_engine.segments.update(held)
    monkeypatch.setattr(fake_engine, "forget", lambda keys: len(keys))
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    assert left(cli.json(*args, code=1))["KV on the server"] == 2


def test_without_a_server_the_folder_is_cleaned_and_the_keys_wait(cli, facts):
    with Memory(path=memory_folder(), background=False) as memory:
        keys = memory.store.keys_behind([facts[1].id])
    shard = stored([*keys, "a" * 40])
    report = cli.json("memory", "forget", facts[1].id, "--hard", "--verify")
    server = next(place for place in report["places"] if place["name"] == "KV on the server")
    assert not server["checked"] and "2 keys wait" in server["note"]
    assert report["left"] == 0
    # Another store's segment is none of ours.
    assert [found.key for found in files.scan(shard)] == ["a" * 40]


def test_without_a_server_and_a_folder_nothing_is_proved_about_kv(cli, facts):
    """There was KV, and nobody looked whether it still is."""
    args = ("memory", "forget", facts[1].id, "--hard", "--verify")
    assert not kv_folder().exists()
    result = cli(*args, "--json", code=1)
    report = json.loads(result.stdout)
    assert report["forgotten"] == 1 and report["left"] == 0 and report["proved"] is False
    assert "not proved" in result.stderr
    assert "--base-url" in result.stderr and "--kv" in result.stderr


def stored(keys, folder=None):
    """These segments, in a folder of KV."""
    shard = (folder or kv_folder()) / "0123456789abcdef" / "r0"
    for key in keys:
        path = files.segment_path(shard, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"KV")
    return shard


def test_a_folder_with_none_of_our_kv_proves_nothing(cli, facts, tmp_path):
    """It is another server's, or new."""
    stored(["a" * 40], tmp_path / "theirs")
    args = ("memory", "forget", facts[1].id, "--hard", "--verify")
    result = cli(*args, "--kv", str(tmp_path / "theirs"), "--json", code=1)
    assert json.loads(result.stdout)["proved"] is False
    assert "no KV of this memory lay in" in result.stderr and "theirs" in result.stderr
    assert "--base-url" in result.stderr


def test_a_folder_that_holds_other_facts_of_ours_will_do(cli, facts):
    with Memory(path=memory_folder(), background=False) as memory:
        keys = memory.store.keys_behind([fact.id for fact in facts])
        gone = memory.store.keys_behind([facts[2].id])
    stored(set(keys) - set(gone))
    assert cli.json("memory", "forget", facts[2].id, "--hard", "--verify")["proved"] is True


def test_a_deletion_that_others_are_not_told_of_proves_nothing(cli, facts, monkeypatch):
    with Memory(path=memory_folder(), background=False) as memory:
        shard = stored(memory.store.keys_behind([fact.id for fact in facts]))

    def full(*_args):
        raise StoreError("a deletion cannot be noted: no space left")

    args = ("memory", "forget", facts[1].id, "--hard", "--verify")
    with monkeypatch.context() as patched:
        patched.setattr(DeletionLog, "add", full)
        result = cli(*args, "--json", code=1)
    assert json.loads(result.stdout)["proved"] is False
    assert "cannot be noted" in result.stderr and "same command again" in result.stderr
    # Nor does it keep a server from being told.
    with monkeypatch.context() as patched:
        patched.setattr(DeletionLog, "add", full)
        report = cli.json(*args, "--base-url", URL, code=1)
    assert left(report)["KV on the server"] == 0
    assert len(list(files.scan(shard))) == 1
    # And then it can be repeated.
    assert cli.json(*args, "--base-url", URL)["proved"] is True


def test_what_was_not_proved_can_be_proved_later(cli, facts, fake_engine):
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    fake_engine.faults.unavailable = True
    assert "same command again" in cli(*args, code=1).stderr
    fake_engine.faults.unavailable = False
    report = cli.json(*args)
    assert (report["forgotten"], report["proved"]) == (0, True)
    unknown = cli("memory", "forget", "f" + "a" * 12, *args[3:], code=1)
    assert "there never was a fact" in unknown.stderr


def test_without_kv_there_is_nothing_to_look_at(cli, home):
    (fact,) = cli.json("memory", "add", "I like tea")
    report = cli.json("memory", "forget", fact["id"], "--hard", "--verify")
    assert report["proved"] is True


@pytest.mark.parametrize("verify", [(), ("--verify",)])
def test_a_kv_folder_that_is_not_there_is_told_before_anything_is_done(
    cli, facts, tmp_path, verify
):
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (tmp_path / "nowhere", file):
        args = ("memory", "forget", facts[1].id, "--hard", *verify, "--kv", str(path))
        told = cli(*args, code=2).stderr
        assert "--kv" in told and str(path) in told
    assert len(cli.json("memory", "list")) == 3
    assert not (tmp_path / "nowhere").exists()


def test_bytes_that_sql_does_not_show_are_found(cli, facts, home):
    (memory_folder() / "facts.db.bak").write_bytes(f"…{SECRET}…".encode())
    report = cli.json(
        "memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL, code=1
    )
    assert left(report)["bytes of the files"] > 0
    note = next(p["note"] for p in report["places"] if p["name"] == "bytes of the files")
    assert "facts.db.bak" in note


def test_a_reader_that_holds_the_log_is_found_out(cli, facts):
    reader = sqlite3.connect(memory_folder() / "facts.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM fact").fetchone()
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    report = cli.json(*args, code=1)
    assert left(report)["bytes of the files"] > 0
    reader.close()


def test_leftovers_in_the_index_are_found(cli, facts):
    path = memory_folder() / "recall.db"
    with sqlite3.connect(path) as database:
        (pk,) = database.execute("SELECT pk FROM item WHERE text LIKE '%xylo%'").fetchone()
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("DELETE FROM item WHERE pk = ?", (pk,))
    database.close()
    report = cli.json(
        "memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL, code=1
    )
    assert (left(report)["recall vectors"], left(report)["recall postings"]) == (1, 1)


def test_the_same_words_of_another_fact_are_not_a_trace(cli, facts):
    cli("memory", "add", f"My {SECRET} is in the attic", "--user", "other")
    report = cli.json("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    assert report["left"] == 0
