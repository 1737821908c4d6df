"""``inferscale kv gc`` and ``inferscale kv verify``."""

from __future__ import annotations

import os
import time

import pytest
import torch

from inferscale_sdk.cli.session import kv_folder, memory_folder
from inferscale_sdk.config import settings
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.tiers.disk import DiskTier

URL = "http://127.0.0.1:9"
FOREIGN = "a" * 40


def put(key, model="fake-model", owner=""):
    data = torch.ones(2, 2, 3, 1, 4)
    with DiskTier(kv_folder(), model) as tier:
        tier.put(Segment(key, data, 0, "0" * 32, owner))
        return tier.path(key)


@pytest.fixture
def keys(home, fake_engine):
    """Two facts with KV, in the engine and in the folder; beside them somebody else's segment."""
    with Memory(
        fake_engine, path=memory_folder(), embedder=FakeEmbedder(), background=False
    ) as memory:
        memory.add(["I like tea", "I live in Porto"], user_id="me")
        assert memory.wait_encoded()
        keys = memory.store.recorded_keys(memory.store.profiles()[0])
    fake_engine.segments[FOREIGN] = "another store's"
    for key in [*fake_engine.segments]:
        put(key)
    return keys


def ledger():
    return SQLiteFactStore(memory_folder() / "facts.db")


def test_where_all_is_well_nothing_is_done(cli, keys, fake_engine):
    before, forgotten = sorted(kv_folder().rglob("*.ifs")), list(fake_engine.forgotten)
    report = cli.json("kv", "gc")
    assert (report["orphans"], report["lost"], report["dropped"]) == (0, 0, 0)
    assert report["unknown"] == 1 and report["removed"] == 0
    report = cli.json("kv", "gc", "--base-url", URL)
    assert (report["orphans"], report["lost"], report["dropped"]) == (0, 0, 0)
    assert sorted(kv_folder().rglob("*.ifs")) == before
    assert fake_engine.forgotten == forgotten


def test_what_dead_writers_left_is_removed_when_it_is_old(cli, keys):
    folder = put(FOREIGN).parent
    old, young = (folder / f".{FOREIGN}.{n:016x}.tmp" for n in range(2))
    for path, age_seconds in ((old, 7200), (young, 60)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_seconds,) * 2)
    assert cli.json("kv", "gc", "--dry-run")["unfinished"] == 1
    assert old.exists()
    assert cli.json("kv", "gc")["unfinished"] == 1
    assert (old.exists(), young.exists()) == (False, True)
    assert cli.json("kv", "gc", "--grace-hours", "0")["unfinished"] == 1
    assert not young.exists()


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("server", [True, False])
def test_orphans_go_and_lost_ones_are_noted(cli, keys, fake_engine, dry, server):
    orphan = "b" * 40
    store = ledger()
    store.note_keys([orphan])
    fake_engine.segments[orphan] = "captured, never recorded"
    path = put(orphan)
    fake_engine.lose([keys[0]])
    for name in kv_folder().rglob(f"{keys[0]}.ifs"):
        name.unlink()
    args = ["kv", "gc", "--grace-hours", "0"]
    args += ["--base-url", URL] if server else []
    args += ["--dry-run"] if dry else []
    report = cli.json(*args)
    assert (report["orphans"], report["lost"]) == (1, 1)
    assert report["dropped"] == (0 if dry else 1)
    if server:
        assert (orphan in fake_engine.segments) is dry
    else:
        assert path.exists() is dry
    assert store.count_pending(store.profiles()[0]) == (0 if dry else 1)
    assert FOREIGN in fake_engine.segments and list(kv_folder().rglob(f"{FOREIGN}.ifs"))
    store.close()


def test_a_capture_under_way_is_no_orphan(cli, keys, fake_engine):
    store = ledger()
    store.note_keys(["b" * 40])
    store.close()
    assert cli.json("kv", "gc")["orphans"] == 0


def test_a_folder_of_other_models_says_nothing_of_ours(cli, keys, tmp_path):
    with DiskTier(tmp_path / "elsewhere", "another-model"):
        pass
    assert cli.json("kv", "gc", "--path", str(tmp_path / "elsewhere"))["lost"] == 0


def test_unknown_segments_go_only_on_request_and_only_old_ones(cli, keys):
    old, new = put(FOREIGN), put("c" * 40)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    assert cli.json("kv", "gc")["removed"] == 0
    assert cli.json("kv", "gc", "--remove-unknown", "--dry-run")["removed"] == 0
    assert old.exists()
    report = cli.json("kv", "gc", "--remove-unknown")
    assert (report["unknown"], report["removed"]) == (2, 1)
    assert not old.exists() and new.exists()
    assert "--path" in cli("kv", "gc", "--remove-unknown", "--base-url", URL, code=2).stderr


def test_a_segment_that_bears_our_owners_tag_is_ours(cli, keys):
    """As after a capture that was replayed when its fact had long been deleted."""
    from inferscale_sdk.kv.key import namespace_secret, owner_tag
    from inferscale_sdk.types import Namespace

    store = ledger()
    tag = owner_tag(namespace_secret(store.secret, Namespace(user_id="me").partition))
    store.close()
    ours, theirs = put("b" * 40, owner=tag), put("c" * 40, owner="0" * 32)
    assert cli.json("kv", "gc")["orphans"] == 0  # it is young: perhaps under way
    report = cli.json("kv", "gc", "--grace-hours", "0")
    assert (report["orphans"], report["dropped"], report["unknown"]) == (1, 1, 2)
    assert not ours.exists() and theirs.exists()
    # A server may have it in memory.
    store = ledger()
    assert store.forget_queue() == ["b" * 40]
    store.close()


def test_no_memory_is_made_only_to_look(cli, home):
    assert "--store" in cli("kv", "gc", code=2).stderr
    assert not memory_folder().exists()


# -- verify --------------------------------------------------------------------------------


def test_verify_names_damage_and_sets_it_aside(cli, home):
    good, bad = put("a" * 40), put("b" * 40)
    assert cli.json("kv", "verify")["damaged"] == []
    bad.write_bytes(bad.read_bytes()[:-1])
    report = cli.json("kv", "verify", code=1)
    assert report["segments"] == 2
    [entry] = report["damaged"]
    assert entry["file"] == str(bad) and "truncated" in entry["reason"]
    assert "left in place" in cli("kv", "verify", code=1).stdout
    assert "set aside" in cli("kv", "verify", "--repair").stdout
    assert not bad.exists() and good.exists()
    assert cli.json("kv", "verify")["damaged"] == []


def test_encrypted_segments_need_their_key(cli, home, monkeypatch):
    import base64

    from inferscale_sdk.kv.cipher import Cipher

    path = put("a" * 40)
    key = b"k" * 32
    place = "/".join(path.parts[-4:])
    path.write_bytes(b"".join(Cipher(key).seal([path.read_bytes()], place)))
    [entry] = cli.json("kv", "verify", "--repair", code=1)["damaged"]
    assert entry["unknown"] and not entry["set_aside"] and path.exists()
    monkeypatch.setenv("INFERSCALE_KV_KEY", base64.b64encode(key).decode())
    settings.cache_clear()
    assert cli.json("kv", "verify")["damaged"] == []


def test_an_empty_folder_is_whole(cli, home):
    assert cli.json("kv", "verify")["segments"] == 0


def test_a_server_that_refuses_is_an_error_and_no_empty_result(cli, keys, fake_engine):
    """A wrong secret, say: nothing was compared, and nothing dropped."""
    fake_engine._can_inject = False
    result = cli("kv", "gc", "--base-url", URL, code=1)
    assert "can_inject=False" in result.stderr and "cannot be compared" in result.stderr
