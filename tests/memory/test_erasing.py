"""What is deleted is in no file any more when the verb returns, whoever has indexed it."""

from __future__ import annotations

import threading

import pytest

from inferscale_sdk.errors import StoreError
from inferscale_sdk.recall.hybrid import HybridRecall, LexicalRecall
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

SECRET = "xylophone zanzibar"


def holds(folder, *words: str) -> dict[str, list[str]]:
    """The files that hold one of the words."""
    wanted = [word.encode() for word in words]
    found = {
        path.name: [word.decode() for word in wanted if word in path.read_bytes()]
        for path in folder.iterdir()
    }
    return {name: words for name, words in found.items() if words}


def erase(memory, how):
    fact = memory.search("xylophone", user_id="alice")[0].fact
    if how == "delete":
        memory.delete(fact.id, user_id="alice", hard=True)
    elif how == "delete_all":
        memory.delete_all(user_id="alice", hard=True)
    else:
        memory.reset(confirm=True)


@pytest.mark.parametrize("how", ["delete", "delete_all", "reset"])
@pytest.mark.parametrize("background", [False, True])
def test_hard_deletes_leave_no_byte(make, tmp_path, how, background):
    memory = make(background=background)
    memory.add(["I like tea", f"My {SECRET} is here"], user_id="alice")
    assert memory.search("xylophone", user_id="alice")
    assert "recall.db" in {*holds(tmp_path / "memory", "xylophone"), *_wal(tmp_path)}

    erase(memory, how)
    assert holds(tmp_path / "memory", "xylophone", "zanzibar", "xylophon") == {}
    memory.close()
    assert holds(tmp_path / "memory", "xylophone", "zanzibar", "xylophon") == {}


def _wal(tmp_path):
    return {name.removesuffix("-wal") for name in holds(tmp_path / "memory", "xylophone")}


@pytest.mark.parametrize("how", ["delete", "delete_all", "reset"])
def test_no_embedder_is_needed_to_erase(make, tmp_path, how):
    memory = make()
    (fact,) = memory.add(f"My {SECRET} is here", user_id="alice")
    memory.search("xylophone", user_id="alice")
    memory.close()

    class Broken(FakeEmbedder):
        @property
        def name(self):
            raise AssertionError("nobody asked for vectors")

    again = make(embedder=Broken())
    if how == "delete":
        again.delete(fact.id, user_id="alice", hard=True)
    elif how == "delete_all":
        again.delete_all(user_id="alice", hard=True)
    else:
        again.reset(confirm=True)
    assert holds(tmp_path / "memory", "xylophone", "zanzibar", "xylophon") == {}


def test_a_soft_delete_leaves_the_index(make, tmp_path):
    memory = make()
    keep, gone = memory.add(["I like tea", f"My {SECRET} is here"], user_id="alice")
    memory.search("xylophone", user_id="alice")
    memory.delete(gone.id, user_id="alice")
    assert "recall.db" not in {name[:9] for name in holds(tmp_path / "memory", "xylophone")}
    # The change feed is still handled in full.
    memory.add("I have a bicycle", user_id="alice")
    found = {hit.fact.id for hit in memory.search("tea bicycle xylophone", user_id="alice")}
    assert keep.id in found and gone.id not in found and len(found) == 2
    index = memory._parts.recaller.index
    assert index.cursor() == memory.store.last_seq()


def test_a_fact_deleted_while_the_thread_embeds_it_leaves_no_byte(make, tmp_path):
    embedding, deleted = threading.Event(), threading.Event()

    class Slow(FakeEmbedder):
        def embed(self, texts):
            embedding.set()
            assert deleted.wait(5)
            return super().embed(texts)

    memory = make(background=True, embedder=Slow())
    (fact,) = memory.add(f"My {SECRET} is here", user_id="alice")
    assert embedding.wait(5)
    memory.delete(fact.id, user_id="alice", hard=True)
    deleted.set()
    memory.close()
    assert holds(tmp_path / "memory", "xylophone", "zanzibar", "xylophon") == {}


def test_nothing_is_made_only_to_erase(make, tmp_path):
    memory = make()
    (fact,) = memory.add("I like tea", user_id="alice")
    memory.delete(fact.id, user_id="alice", hard=True)
    assert not (tmp_path / "memory" / "recall.db").exists()


@pytest.mark.parametrize("how", ["delete", "reset"])
def test_what_could_not_be_erased_is_erased_on_close(make, tmp_path, monkeypatch, caplog, how):
    memory = make()
    memory.add(f"My {SECRET} is here", user_id="alice")
    memory.search("xylophone", user_id="alice")

    def locked(*_):
        raise StoreError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(HybridRecall, "remove", locked)
        patch.setattr(HybridRecall, "restart", locked)
        erase(memory, how)
    assert "still in the recall index (StoreError)" in caplog.text
    memory.close()
    assert holds(tmp_path / "memory", "xylophone", "zanzibar", "xylophon") == {}


def test_a_given_index_is_erased_from_and_stays_open(make, tmp_path):
    index = LexicalRecall(tmp_path / "own.db")
    memory = make(index=index, embedder=None)
    memory.add(f"My {SECRET} is here", user_id="alice")
    memory.search("xylophone", user_id="alice")
    erase(memory, "delete")
    memory.close()
    index.cursor()
    index.close()
    assert b"xylophon" not in (tmp_path / "own.db").read_bytes()


# -- another store beside the index --------------------------------------------------------


def _copy(folder, name):
    import shutil

    shutil.copy(folder / "facts.db", folder.parent / name)


def test_a_store_made_anew_beside_the_index_is_found_whole(make, tmp_path, caplog):
    memory = make()
    memory.add([f"My {SECRET} is here", "I like tea", "I like wine"], user_id="alice")
    memory.search("tea", user_id="alice")
    memory.close()
    (tmp_path / "memory" / "facts.db").unlink()

    again = make()
    facts = again.add([f"Bicycle number {i}" for i in range(4)], user_id="alice")
    found = again.search("bicycle", user_id="alice")
    assert {hit.fact.id for hit in found} == {fact.id for fact in facts}
    assert "made again from the facts" in caplog.text
    again.close()
    assert holds(tmp_path / "memory", "xylophone", "xylophon") == {}


@pytest.mark.parametrize("later", [0, 1, 5])
def test_a_restored_backup_is_found_whole(make, tmp_path, caplog, later):
    folder = tmp_path / "memory"
    memory = make()
    kept = memory.add("I like tea", user_id="alice")
    memory.search("tea", user_id="alice")
    memory.close()
    _copy(folder, "backup.db")
    memory = make()
    memory.add([f"Lost {i}" for i in range(3)], user_id="alice")
    memory.search("tea", user_id="alice")
    memory.close()
    (tmp_path / "backup.db").replace(folder / "facts.db")

    again = make()
    if later:
        kept += again.add([f"New {i}" for i in range(later)], user_id="alice")
    found = again.search("tea", user_id="alice")
    assert {hit.fact.id for hit in found} == {fact.id for fact in kept}
    assert "made again from the facts" in caplog.text
    caplog.clear()
    assert len(again.search("tea", user_id="alice")) == len(kept)
    assert caplog.text == ""
