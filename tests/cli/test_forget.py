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
        monkeypatch.setattr(fake_engine, "locate", lambda keys: {})
        raise EngineError("the server could not remove 2 segments from every tier")

    monkeypatch.setattr(fake_engine, "forget", refuse)
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


def stored(keys, folder=None):
    """These segments, in a folder of KV."""
    shard = (folder or kv_folder()) / "0123456789abcdef" / "r0"
    for key in keys:
        path = files.segment_path(shard, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"KV")
    return shard


def keys_of(*facts):
    with Memory(path=memory_folder(), background=False) as memory:
        return memory.store.keys_behind([fact.id for fact in facts])


def test_without_a_server_the_folder_is_cleaned_and_nothing_is_proved(cli, facts):
    """A server's memory and a remote store were not asked."""
    shard = stored([*keys_of(facts[1]), "a" * 40])
    result = cli("memory", "forget", facts[1].id, "--hard", "--verify", "--json", code=1)
    report = json.loads(result.stdout)
    server = next(place for place in report["places"] if place["name"] == "KV on the server")
    assert not server["checked"] and "2 keys wait" in server["note"]
    assert (report["forgotten"], report["left"], report["proved"]) == (1, 0, False)
    assert "--base-url" in result.stderr and "--no-server" in result.stderr
    # Another store's segment is none of ours.
    assert [found.key for found in files.scan(shard)] == ["a" * 40]


def test_where_no_server_is_the_folder_is_all(cli, facts):
    stored(keys_of(*facts))
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--no-server")
    report = cli.json(*args)
    assert (report["forgotten"], report["proved"]) == (1, True)
    with Memory(path=memory_folder(), background=False) as memory:
        assert memory.store.forget_queue() == []


def test_a_server_and_none_is_a_mistake(cli, facts):
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--no-server")
    assert "--no-server" in cli(*args, "--base-url", URL, code=2).stderr
    assert "--verify" in cli("memory", "forget", facts[1].id, "--no-server", code=2).stderr


def test_a_folder_without_these_facts_kv_proves_nothing(cli, facts, tmp_path):
    """It is another server's, or new, or the KV was moved away and other facts' came after."""
    theirs = tmp_path / "theirs"
    for there in (["a" * 40], set(keys_of(*facts)) - set(keys_of(facts[2]))):
        stored(there, theirs)
        args = ("memory", "forget", facts[2].id, "--hard", "--verify", "--kv", str(theirs))
        told = cli(*args, "--no-server", code=1).stderr
        assert "1 of 1 segments" in told and "--base-url" in told and "--allow-missing" in told
        assert len(cli.json("memory", "list")) == 3
    assert cli.json(*args, "--no-server", "--allow-missing")["proved"] is True


def test_a_server_without_these_facts_kv_proves_nothing(cli, facts, fake_engine):
    """The wrong one, or a part of it lies elsewhere."""
    gone = keys_of(facts[1])
    del fake_engine.segments[gone[0]]
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    result = cli(*args, "--json", code=1)
    assert json.loads(result.stdout)["proved"] is False and "1 of 2 segments" in result.stderr
    fake_engine.segments.clear()
    assert "2 of 2 segments" in cli(*args, code=1).stderr
    assert len(cli.json("memory", "list")) == 3
    assert cli.json(*args, "--allow-missing")["proved"] is True


def test_what_the_wrong_server_is_asked_afterwards_proves_nothing(cli, facts, fake_engine):
    """It says of each key that it has none, and would say so of any."""
    cli("memory", "forget", facts[1].id, "--hard")
    fake_engine.segments.clear()
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    result = cli(*args, "--json", code=1)
    assert json.loads(result.stdout)["proved"] is False
    assert "none of the places asked has any KV of this memory" in result.stderr


def test_a_folder_is_cleaned_of_what_another_server_dropped_before(cli, facts, fake_engine):
    """It never had it: the server that has works on this folder."""
    shard = stored(keys_of(*facts))
    gone = keys_of(facts[1])
    with Memory(fake_engine, path=memory_folder(), background=False) as memory:
        memory.delete(facts[1].id, user_id="me", hard=True)
        assert gone and memory.store.forget_queue() == []
    assert len(list(files.scan(shard))) == 3
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--no-server")
    assert cli.json(*args)["proved"] is True
    assert not {found.key for found in files.scan(shard)} & set(gone)


def test_copies_in_the_folder_are_found(cli, facts):
    shard = stored(keys_of(*facts))
    key = keys_of(facts[2])[0]
    root = kv_folder()
    places = [
        root / f"{key}.ifs",
        root / "backup" / key[:2] / f"{key}.ifs",
        files.segment_path(shard, key).with_name(f"copy-of-{key}.ifs"),
        files.segment_path(shard, key).with_suffix(".ifs.bak"),
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"KV")
    args = ("memory", "forget", facts[2].id, "--hard", "--verify", "--no-server")
    report = cli.json(*args, code=1)
    assert report["left"] == 4
    note = next(p["note"] for p in report["places"] if p["name"].startswith("KV folder"))
    assert all(str(place.relative_to(root)) in note for place in places)
    for place in places:
        place.unlink()
    assert cli.json(*args)["proved"] is True


def test_a_deletion_that_others_are_not_told_of_proves_nothing(cli, facts, monkeypatch):
    shard = stored(keys_of(*facts))

    def full(*_args):
        raise StoreError("a deletion cannot be noted: no space left")

    args = ("memory", "forget", facts[1].id, "--hard", "--verify")
    with monkeypatch.context() as patched:
        patched.setattr(DeletionLog, "add", full)
        result = cli(*args, "--no-server", "--json", code=1)
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


def test_a_copy_of_the_database_hides_nothing(cli, facts):
    """Neither itself nor another file, and in a folder of its own no less."""
    old = memory_folder() / "old"
    old.mkdir()
    for copy in (memory_folder() / "facts-copy.db", old / "facts.db", old / "notes.txt"):
        copy.write_bytes((memory_folder() / "facts.db").read_bytes())
    args = ("memory", "forget", facts[1].id, "--hard", "--verify", "--base-url", URL)
    report = cli.json(*args, code=1)
    note = next(p["note"] for p in report["places"] if p["name"] == "bytes of the files")
    assert all(name in note for name in ("facts-copy.db", "old/facts.db", "old/notes.txt"))


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
