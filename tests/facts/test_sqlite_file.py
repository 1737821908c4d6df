"""What the conformance suite cannot see: the file, other processes, size, injection."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from inferscale_sdk.errors import ConfigurationError, StoreError
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.facts.migrations import FACT_SCHEMA
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.memory.residue import files_below, residue
from inferscale_sdk.sqlite.migrations import check_numbers
from inferscale_sdk.testing.fact_ledger_suite import PROFILE, encoded
from inferscale_sdk.types import Namespace, NewFact

ALICE = Namespace(user_id="alice")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "here" / "facts.db"


@pytest.fixture
def store(path):
    store = SQLiteFactStore(path)
    yield store
    store.close()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_store_is_private(store, path):
    store.add([NewFact("x")], ALICE)

    assert mode(path.parent) == mode(path.parent.parent) == 0o700
    assert {mode(file) for file in path.parent.iterdir()} == {0o600}


def test_memory_store_works_across_threads():
    store = SQLiteFactStore(":memory:")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: store.add([NewFact(f"fact {i}")], ALICE), range(40)))

    assert store.count(ALICE) == 40
    store.close()


def test_hard_delete_leaves_no_byte_of_the_text(store, path):
    word = "zebrafish"
    [fact] = store.add([NewFact(f"{word} 1", metadata={"note": word})], ALICE)
    store.update(fact.id, ALICE, text=f"{word} 2")
    store.delete(fact.id, ALICE, hard=True)

    assert not any(word.encode() in file.read_bytes() for file in path.parent.iterdir())


def test_use_after_close_says_so(path):
    store = SQLiteFactStore(path)
    store.close()

    with pytest.raises(StoreError, match="closed"):
        store.count(ALICE)


def test_file_of_another_kind_is_refused(tmp_path):
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()

    with pytest.raises(ConfigurationError, match="not a fact store"):
        SQLiteFactStore(other)
    connection = sqlite3.connect(other)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


def test_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "facts.db"
    path.write_bytes(b"not a database" * 100)

    with pytest.raises(StoreError, match=r"facts\.db"):
        SQLiteFactStore(path)


def test_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="folder"):
        SQLiteFactStore(tmp_path)


def test_file_of_a_newer_version_is_refused(store, path):
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO migration VALUES (99, 'from the future', 0)")
    connection.commit()
    connection.close()

    with pytest.raises(ConfigurationError, match="schema 99"):
        SQLiteFactStore(path)


def test_every_migration_has_its_record(store, path):
    check_numbers(FACT_SCHEMA.migrations)
    connection = sqlite3.connect(path)
    recorded = connection.execute("SELECT number, name FROM migration").fetchall()
    connection.close()

    assert recorded == [(step.number, step.name) for step in FACT_SCHEMA.migrations]


def test_kv_made_behind_another_owner_goes_with_the_third_migration(store, path):
    """Files of schema 2 may hold KV whose window crossed agents."""
    tutor = Namespace(user_id="alice", agent_id="tutor")
    first, second = store.add([NewFact("one", "c"), NewFact("two", "c")], ALICE)
    [mixed] = store.add([NewFact("three", "c")], tutor)
    store.record_encodings(
        [encoded(first, "k1"), encoded(second, "k2", [first]), encoded(mixed, "k3")]
    )
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO encoding_context SELECT"
        " (SELECT pk FROM fact WHERE id = ?), (SELECT pk FROM encoding WHERE key = 'k3')",
        (first.id,),
    )
    connection.execute("DELETE FROM migration WHERE number = 3")
    connection.commit()
    connection.close()

    store = SQLiteFactStore(path)
    assert set(store.encodings([first.id, second.id, mixed.id], PROFILE)) == {first.id, second.id}
    assert store.pending(PROFILE) == [mixed]
    assert store.forget_queue() == ["k3"]
    store.close()


def test_ids_that_cannot_be_stored_are_refused(store):
    from inferscale_sdk.errors import NamespaceError, NotFoundError

    with pytest.raises(NamespaceError, match="surrogate"):
        store.add([NewFact("x")], Namespace(user_id="\ud800"))
    with pytest.raises(NotFoundError):
        store.get("\ud800", ALICE)
    with pytest.raises(ConfigurationError, match="surrogate"):
        store.find(ALICE, conversation_id="\ud800")


def test_ids_mix_letters_and_digits(store):
    ids = [fact.id for fact in store.add([NewFact("x")] * 300, ALICE)]

    assert all(any(c.isdigit() for c in i) and any(c.isalpha() for c in i[1:]) for i in ids)
    assert {len(i) for i in ids} == {25}


WRITER = """
import sys
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.types import Namespace, NewFact
store = SQLiteFactStore(sys.argv[1])
owner = Namespace(user_id="alice")
for i in range(60):
    store.add([NewFact(f"{sys.argv[2]} {i}", "c"), NewFact("second", "c")], owner)
print(store.secret.hex())
store.close()
"""


def test_processes_share_one_new_file(path):
    # Both also race for making the file and its secret.
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two", "three")
    ]
    secrets = {writer.communicate(timeout=60)[0] for writer in writers}

    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(secrets) == 1
    store = SQLiteFactStore(path)
    facts = store.find(ALICE)
    assert sorted(fact.position for fact in facts) == list(range(360))
    assert store.last_seq() == 360
    store.close()


def test_killed_writer_leaves_whole_batches(path):
    SQLiteFactStore(path).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "x"], stdout=subprocess.DEVNULL
    )
    store = SQLiteFactStore(path)
    while store.count(ALICE) < 10 and writer.poll() is None:
        time.sleep(0.002)
    writer.kill()
    writer.wait()

    assert store.count(ALICE) % 2 == 0
    assert store.last_seq() == store.count(ALICE)
    store.add([NewFact("still writable")], ALICE)
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_opens_its_own_connections(store):
    store.add([NewFact("parent")], ALICE)
    child = os.fork()
    if child == 0:
        try:
            store.add([NewFact("child")], ALICE)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert [fact.text for fact in store.find(ALICE)] == ["parent", "child"]


def test_readers_do_not_wait_for_a_writer(store):
    store.add([NewFact("x")], ALICE)
    with store._db.write():
        counted = []
        reader = threading.Thread(target=lambda: counted.append(store.count(ALICE)))
        reader.start()
        reader.join(5)

    assert counted == [1]


def test_failed_transaction_leaves_nothing(store):
    with pytest.raises(RuntimeError):
        with store._db.write() as connection:
            connection.execute("INSERT INTO profile (name) VALUES ('half')")
            raise RuntimeError
    with store._db.read() as connection:
        assert connection.execute("SELECT count(*) FROM profile").fetchone() == (0,)


# The queries that run on every request or for every batch, and what they may cost: a plan that
# scans a table, or sorts, would grow with the store.
HOT = {
    "last_seq": lambda s, f: s.last_seq(),
    "get_many": lambda s, f: s.get_many([x.id for x in f], ALICE),
    "encodings": lambda s, f: s.encodings([x.id for x in f], "p"),
    "preceding": lambda s, f: s.preceding(f[-1], 20),
    "pending": lambda s, f: s.pending("p", limit=100),
    "changes": lambda s, f: s.changes(5, 100),
    "find_first": lambda s, f: s.find(ALICE, limit=20),
    "count": lambda s, f: s.count(ALICE),
}


@pytest.mark.parametrize("name", HOT)
def test_hot_queries_use_an_index(store, name):
    facts = store.add([NewFact(f"fact {i}", "c") for i in range(30)], ALICE)
    store.pending("p")
    seen = []
    with store._db.read() as connection:
        connection.set_trace_callback(seen.append)
    HOT[name](store, facts)
    with store._db.read() as connection:
        connection.set_trace_callback(None)
        plans = [
            step[3]
            for sql in seen
            if sql.startswith("SELECT")
            for step in connection.execute("EXPLAIN QUERY PLAN " + sql)
        ]

    assert plans
    scans = [
        p for p in plans if p.startswith("SCAN") and "json_each" not in p and "VIRTUAL" not in p
    ]
    assert scans == []
    if name not in ("get_many",):  # sorts only what was asked for
        assert not [p for p in plans if "TEMP B-TREE" in p]


@pytest.mark.slow
def test_a_hundred_thousand_facts(store):
    for user in range(10):
        owner = Namespace(user_id=f"user{user}", agent_id="everybody's")
        store.add([NewFact(f"fact {i}", f"c{i // 500}") for i in range(10_000)], owner)
    mine = Namespace(user_id="user3")
    facts = store.find(mine)

    def milliseconds(call):
        call()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    ids = [fact.id for fact in facts]
    store.record_encodings(
        [
            EncodingRecord(
                f.id, 1, "p", f"k{f.id}", 9, tuple(ids[max(0, i - 20) : i]), f.created_at
            )
            for i, f in enumerate(facts)
            if f.conversation_id == "c0"
        ]
    )
    assert milliseconds(store.last_seq) < 5
    assert milliseconds(lambda: store.preceding(facts[5000], 20)) < 10
    assert milliseconds(lambda: store.pending("p", limit=100)) < 20
    assert milliseconds(lambda: store.encodings(ids[:50], "p")) < 20
    assert milliseconds(lambda: store.get_many(ids[:50], mine)) < 20
    assert milliseconds(lambda: store.find(mine, limit=20)) < 20
    assert milliseconds(lambda: store.count(mine)) < 50
    assert len(store.get_many(ids, mine)) == 10_000
    assert store.count_pending("p") == 99_500
    assert len(store.delete_all(mine, hard=True)) == 10_000
    assert len(store.forget_queue()) == 500
    assert store.count(Namespace(agent_id="everybody's")) == 90_000


# -- locks of this process, which closing any of its files would drop -----------------------------

WRITES = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    database.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error)
"""
OPENS_AND_LEAVES = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0)
database.close()
"""


def elsewhere(script, path):
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_opening_a_store_again_keeps_the_locks_of_the_first(store, path):
    store.add([NewFact("x")], ALICE)
    log = path.with_name(path.name + "-wal")
    assert log.stat().st_size
    SQLiteFactStore(path).close()

    # Whoever leaves a database last takes its log away.
    assert elsewhere(OPENS_AND_LEAVES, path) == "True"
    assert log.exists()
    with store._db.write():
        second = SQLiteFactStore(path)
        assert "locked" in elsewhere(WRITES, path)
        second.close()
        assert "locked" in elsewhere(WRITES, path)


def test_looking_for_traces_keeps_the_locks(store, path):
    store.add([NewFact("The safe is behind the clock.")], ALICE)
    with store._db.write():
        residue(files_below(path.parent), ["a text that is not there"], databases=[path])
        assert "locked" in elsewhere(WRITES, path)
    assert elsewhere(OPENS_AND_LEAVES, path) == "True"
    assert path.with_name(path.name + "-wal").exists()


def test_a_store_is_made_where_links_are_not(path, monkeypatch):
    def link(*_args, **_options):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    SQLiteFactStore(path).close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert mode(path) == 0o600
