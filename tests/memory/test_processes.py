"""Several processes on one folder."""

from __future__ import annotations

import subprocess
import sys

from inferscale_sdk.testing.fake_embedder import FakeEmbedder

OTHER = """
import sys
from inferscale_sdk import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

with Memory(path=sys.argv[1], embedder=FakeEmbedder()) as memory:
    for i in range(20):
        memory.add(f"{sys.argv[2]} says number{i}", user_id=sys.argv[2])
        assert memory.search(f"number{i}", user_id=sys.argv[2])
    print(memory.mint(memory.get_all(user_id=sys.argv[2], limit=1))[0])
"""


def test_several_processes_write_and_search_at_once(make, tmp_path):
    folder = tmp_path / "memory"
    command = [sys.executable, "-c", OTHER, str(folder)]
    others = [
        subprocess.Popen(
            [*command, user], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for user in ("alice", "alice", "bob")
    ]
    memory = make(background=True, embedder=FakeEmbedder())
    for i in range(20):
        memory.add(f"bob adds thing{i}", user_id="bob")
    handles = []
    for other in others:
        out, err = other.communicate(timeout=120)
        assert other.returncode == 0, err
        handles.append(out.strip())
    assert memory.count(user_id="alice") == memory.count(user_id="bob") == 40
    assert len(memory.search("number7", user_id="alice", top_k=2)) == 2
    assert memory.resolve(handles[0], user_id="alice"), "one store, one secret"
    assert memory.resolve(handles[0], user_id="bob") == []
    assert memory.wait_encoded(60.0)
    facts = [*memory.get_all(user_id="alice"), *memory.get_all(user_id="bob")]
    assert len({f.id for f in facts}) == 80
    positions = [f.position for f in memory.get_all(user_id="alice")]
    assert len(set(positions)) == 40
