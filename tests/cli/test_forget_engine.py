"""The proof of deletion against a real server: every tier is asked, and the KV is really gone."""

from __future__ import annotations

import pytest

from inferscale_sdk.cli.session import memory_folder
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

pytestmark = pytest.mark.engine


def test_nothing_is_left_on_a_real_server(cli, home, engine, server_folder):
    kv = server_folder / "kv"
    with Memory(engine, path=memory_folder(), embedder=FakeEmbedder(), background=False) as memory:
        facts = memory.add(
            ["I like tea", "My zanzibar xylophone is in the attic", "I live in Porto"],
            user_id="me",
        )
        memory.search("tea", user_id="me")
        assert memory.wait_encoded(120)
        keys = memory.store.keys_behind([facts[1].id])
        others = set(memory.store.keys_behind([f.id for f in facts])) - set(keys)
    assert len(keys) >= 2  # its own, and those of facts encoded behind it
    assert {key: set(at) for key, at in engine.locate(keys).items()} == {
        key: {"disk", "host"} for key in keys
    }
    report = cli.json(
        *("memory", "forget", facts[1].id, "--hard", "--verify"),
        *("--base-url", engine.base_url, "--kv", str(kv)),
    )
    assert report["left"] == 0 and all(place["checked"] for place in report["places"])
    assert engine.locate(keys) == {}
    assert engine.locate([*others]).keys() == others
    assert not any(path for key in keys for path in kv.rglob(f"*{key}*"))


def test_a_store_with_lost_and_orphaned_segments_is_put_right(cli, home, engine):
    with Memory(engine, path=memory_folder(), embedder=FakeEmbedder(), background=False) as memory:
        memory.add(["I keep bees", "My brother is called Anton"], user_id="me")
        assert memory.wait_encoded(120)
        kept, lost = memory.store.recorded_keys(memory.store.profiles()[0])
        engine.forget([lost])
        report = cli.json("kv", "gc", "--base-url", engine.base_url)
        assert (report["lost"], report["orphans"]) == (1, 0)
        memory.store.drop_encodings([kept])
        report = cli.json("kv", "gc", "--base-url", engine.base_url, "--grace-hours", "0")
        # Both are noted and no fact names them; only one was still there.
        assert (report["lost"], report["orphans"]) == (0, 2)
        assert engine.locate([kept, lost]) == {}
        assert memory.wait_encoded(120)
        assert engine.locate([kept, lost]).keys() == {kept, lost}
