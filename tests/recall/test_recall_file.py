"""What the conformance suite cannot see: the file, embedders, other processes, what is read."""

import os
import sqlite3
import stat
import subprocess
import sys

import numpy as np
import pytest

from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.memory import Memory
from inferscale_sdk.recall.base import RecallQuery
from inferscale_sdk.recall.hybrid import DenseRecall, HybridRecall, LexicalRecall
from inferscale_sdk.recall.migrations import RECALL_SCHEMA
from inferscale_sdk.sqlite.migrations import check_numbers
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.recall_suite import ask, make_fact
from inferscale_sdk.types import Namespace

ALICE = Namespace(user_id="alice")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "recall.db"


@pytest.fixture
def opened():
    """Closes what a test opens."""
    indexes = []
    yield lambda index: indexes.append(index) or index
    for index in indexes:
        index.close()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_index_is_private(path, opened):
    opened(HybridRecall(path, FakeEmbedder())).upsert([make_fact("f1", "tea")])

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()} == {0o600}


def test_removed_words_leave_the_file(path, opened):
    index = opened(HybridRecall(path, FakeEmbedder()))
    fact = make_fact("f1", "the zebrafish swims", metadata={"note": "zebrafish"})
    index.upsert([fact, make_fact("f2", "green tea")])
    index.remove(["f1"])

    assert not any(b"zebrafish" in file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("begin", [b"no database", b"SQLite format 3\0"])
def test_a_damaged_file_may_be_deleted_and_is_made_again(tmp_path, begin):
    with Memory(path=tmp_path, embedder=FakeEmbedder(), background=False) as memory:
        memory.add("I like tea", user_id="alice")
        assert memory.search("tea", user_id="alice")
    path = tmp_path / "recall.db"
    path.write_bytes(begin + b"damaged" * 2000)

    with Memory(path=tmp_path, embedder=FakeEmbedder(), background=False) as memory:
        with pytest.raises(StoreError, match=r"recall\.db .*; delete it, it is made again"):
            memory.search("tea", user_id="alice")
        path.unlink()
        assert memory.search("tea", user_id="alice")


def test_a_damaged_fact_store_needs_a_backup(tmp_path):
    (tmp_path / "facts.db").write_bytes(b"no database" * 2000)
    with pytest.raises(StoreError, match="restore a backup"):
        SQLiteFactStore(tmp_path / "facts.db")


def test_file_of_another_kind_is_refused(tmp_path):
    SQLiteFactStore(tmp_path / "facts.db").close()

    with pytest.raises(ConfigurationError, match="not a recall index"):
        LexicalRecall(tmp_path / "facts.db")


def test_every_migration_has_its_record():
    check_numbers(RECALL_SCHEMA.migrations)


def test_use_after_close_says_so(path):
    index = HybridRecall(path, FakeEmbedder())
    index.close()

    with pytest.raises(StoreError, match="closed"):
        ask(index, "tea")


# -- embedders -----------------------------------------------------------------------------------


def test_another_embedder_is_refused_and_both_are_named(path, opened):
    opened(HybridRecall(path, FakeEmbedder(name="first"))).upsert([make_fact("f1", "tea")])

    with pytest.raises(ConfigurationError, match=r"'first'.*'second'.*reembed"):
        HybridRecall(path, FakeEmbedder(name="second"))


def test_reembed_makes_every_vector_anew(path, opened):
    facts = [make_fact(f"f{i}", f"green tea {i}") for i in range(600)]
    opened(HybridRecall(path, FakeEmbedder(name="first"))).upsert(facts)
    second = FakeEmbedder(32, name="second")
    index = opened(DenseRecall(path, second, on_mismatch="reembed"))

    assert ask(index, "green tea 7", top_k=1) == ["f7"]
    assert second.calls == 600
    assert ask(opened(DenseRecall(path, second)), "green tea 8", top_k=1) == ["f8"]
    assert second.calls == 600


def test_a_process_with_the_old_embedder_is_told(path, opened):
    old = opened(HybridRecall(path, FakeEmbedder(name="first")))
    old.upsert([make_fact("f1", "tea")])
    opened(HybridRecall(path, FakeEmbedder(name="second"), on_mismatch="reembed"))

    with pytest.raises(ConfigurationError, match="second"):
        ask(old, "tea")
    with pytest.raises(ConfigurationError, match="second"):
        old.upsert([make_fact("f2", "tea")])


def test_vectors_missing_from_a_lexical_file_are_made(path, opened):
    opened(LexicalRecall(path)).upsert([make_fact("f1", "tea"), make_fact("f2", "coffee")])
    embedder = FakeEmbedder()
    index = opened(HybridRecall(path, embedder))

    [hit] = index.search(RecallQuery("tea", ALICE, top_k=1))
    assert (hit.fact_id, hit.similarity) == ("f1", pytest.approx(1.0, abs=1e-5))
    assert embedder.calls == 2


def test_same_text_is_not_embedded_again(path, opened):
    embedder = FakeEmbedder()
    index = opened(HybridRecall(path, embedder))
    index.upsert([make_fact("f1", "tea")])
    index.upsert([make_fact("f1", "tea", version=2, metadata={"a": 1})])
    index.upsert([make_fact("f1", "tea", version=2, metadata={"a": 1})])

    assert embedder.calls == 1
    assert ask(index, "tea", filters={"a": 1}) == ["f1"]


class BadEmbedder(FakeEmbedder):
    def __init__(self, change):
        super().__init__()
        self._change = change

    def embed(self, texts):
        return self._change(super().embed(texts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:, :10], "shape"),
        (lambda v: v[:-1], "shape"),
        (lambda v: v * 3, "length 3"),
        (lambda v: v * np.nan, "length nan"),
        (lambda v: v * 0, "length 0"),
    ],
)
def test_vectors_that_break_the_contract_are_refused(path, opened, change, message):
    index = opened(HybridRecall(path, BadEmbedder(change)))

    with pytest.raises(ConfigurationError, match=message):
        index.upsert([make_fact("f1", "tea"), make_fact("f2", "coffee")])
    assert index.cursor() == 0


def test_embedding_holds_no_lock(path, opened):
    other = opened(LexicalRecall(path))

    class Nosy(FakeEmbedder):
        def embed(self, texts):
            other.upsert([make_fact("f2", "written while the embedder is at work")])
            return super().embed(texts)

    index = opened(HybridRecall(path, Nosy()))
    index.upsert([make_fact("f1", "tea")])

    assert ask(other, "embedder work") == ["f2"]


# -- thresholds ----------------------------------------------------------------------------------


def test_threshold_is_a_cosine(path, opened):
    index = opened(HybridRecall(path, FakeEmbedder()))
    index.upsert(
        [
            make_fact("f1", "green tea"),
            make_fact("f2", "green tea " + " ".join(f"filler{i}" for i in range(60))),
        ]
    )

    assert ask(index, "green tea") == ["f1", "f2"]
    assert ask(index, "green tea", threshold=0.9) == ["f1"], "f2 is found by its words alone"
    with pytest.raises(ConfigurationError, match="-1 to 1"):
        ask(index, "green tea", threshold=1.1)


def test_lexical_recall_has_no_threshold(path, opened):
    with pytest.raises(ConfigurationError, match="threshold"):
        ask(opened(LexicalRecall(path)), "tea", threshold=0.5)


# -- other users, other processes ----------------------------------------------------------------


def test_a_search_reads_no_other_partition(path, opened):
    index = opened(HybridRecall(path, FakeEmbedder()))
    users = [Namespace(user_id=f"u{i}") for i in range(3)]
    for user in users:
        index.upsert(
            [make_fact(f"f{user.user_id}x{i}", f"secret{user.user_id} tea", user) for i in range(5)]
        )
    connection = sqlite3.connect(path)
    others = {
        row[0]
        for row in connection.execute("SELECT pk FROM item WHERE user_id <> 'u1' ORDER BY pk")
    }
    # What must not be read is made unreadable: a stray look at it would fail the search.
    connection.executemany(
        "UPDATE vector SET data = x'00' WHERE item_pk = ?", [(p,) for p in others]
    )
    connection.commit()
    connection.close()

    again = opened(HybridRecall(path, FakeEmbedder()))
    assert ask(again, "tea", users[1]) == [f"fu1x{i}" for i in range(5)]
    assert len(again._cache) == 1


def test_memory_of_partitions_is_bounded(path, opened):
    dim, n = 64, 50
    index = opened(HybridRecall(path, FakeEmbedder(dim), cache_bytes=3 * n * (dim * 4 + 100)))
    for u in range(8):
        user = Namespace(user_id=f"u{u}")
        index.upsert([make_fact(f"f{u}x{i}", f"tea {i}", user) for i in range(n)])
    for u in (0, 1, 2, 3, 4, 5, 6, 7, 0):
        assert len(ask(index, "tea", Namespace(user_id=f"u{u}"), top_k=100)) == n
        assert len(index._cache) <= 3


WRITER = """
import sys
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.recall_suite import make_fact
index = HybridRecall(sys.argv[1], FakeEmbedder())
for i in range(30):
    index.upsert([make_fact(f"f{sys.argv[2]}x{i:02d}", "green tea")])
    if i % 10 == 0:
        index.remove([f"f{sys.argv[2]}x{i:02d}"])
index.close()
"""


def test_processes_share_one_new_file(path, opened):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")
    ]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            index = opened(HybridRecall(path, FakeEmbedder()))
            found = ask(index, "green tea", top_k=200)
            assert found == sorted(set(found))
            break
    assert [writer.wait(60) for writer in writers] == [0, 0]

    expected = [f"f{name}x{i:02d}" for name in "ab" for i in range(30) if i % 10]
    assert ask(opened(HybridRecall(path, FakeEmbedder())), "green tea", top_k=200) == expected
