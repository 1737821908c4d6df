"""Catching up with the fact store: complete, repeatable, and healed after any interruption."""

import random

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.recall.sync import erase, sync
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.recall_suite import ask
from inferscale_sdk.types import Namespace, NewFact

ALICE = Namespace(user_id="alice")


@pytest.fixture
def store():
    store = SQLiteFactStore(":memory:")
    yield store
    store.close()


@pytest.fixture
def index():
    index = HybridRecall(":memory:", FakeEmbedder())
    yield index
    index.close()


def found(index, text="tea"):
    return sorted(ask(index, text, top_k=1000))


def live(store):
    return sorted(fact.id for fact in store.find(ALICE))


def test_sync_adds_updates_and_removes(store, index):
    facts = store.add([NewFact(f"tea {i}") for i in range(10)], ALICE)
    assert sync(store, index) == 10
    assert found(index) == live(store)

    store.update(facts[0].id, ALICE, text="wine")
    store.delete(facts[1].id, ALICE)
    store.delete(facts[2].id, ALICE, hard=True)
    store.update(facts[3].id, ALICE, metadata={"a": 1})
    assert sync(store, index, page=1) == 4
    assert found(index) == live(store)
    assert ask(index, "wine", top_k=1) == [facts[0].id]
    assert ask(index, "tea", filters={"a": 1}) == [facts[3].id]


def test_sync_twice_does_nothing(store, index):
    store.add([NewFact("tea")], ALICE)

    assert [sync(store, index), sync(store, index)] == [1, 0]
    assert index.cursor() == store.last_seq()


def test_only_the_last_version_is_embedded(store):
    embedder = FakeEmbedder()
    index = HybridRecall(":memory:", embedder)
    [fact] = store.add([NewFact("tea 0")], ALICE)
    for i in range(1, 20):
        store.update(fact.id, ALICE, text=f"tea {i}")
    sync(store, index)

    assert embedder.calls == 1
    index.close()


@pytest.mark.parametrize("step", ["upsert", "remove", "set_cursor"])
def test_a_crash_at_any_step_is_healed(store, index, monkeypatch, step):
    facts = store.add([NewFact(f"tea {i}") for i in range(6)], ALICE)
    sync(store, index)
    store.delete(facts[0].id, ALICE)
    store.add([NewFact("more tea")], ALICE)

    with monkeypatch.context() as patch:
        patch.setattr(index, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sync(store, index)
    sync(store, index)

    assert found(index) == live(store)
    assert index.cursor() == store.last_seq()


def test_a_fact_deleted_while_it_is_embedded_does_not_come_back(store):
    """Another process deletes the fact and has already taken it from the index."""

    class Slow(FakeEmbedder):
        def embed(self, texts):
            store.delete(fact.id, ALICE)
            sync(store, index)
            return super().embed(texts)

    index = HybridRecall(":memory:", Slow())
    [fact] = store.add([NewFact("tea")], ALICE)
    sync(store, index)

    assert found(index) == []
    assert index.cursor() == store.last_seq()
    index.close()


def test_an_index_ahead_of_its_store_is_made_again(store, index):
    store.add([NewFact("tea")], ALICE)
    index.set_cursor(7)

    assert sync(store, index) == 1
    assert found(index) == live(store)
    assert index.cursor() == store.last_seq()


def test_a_file_that_does_not_tell_its_store_is_made_again(store, index):
    facts = store.add([NewFact("tea"), NewFact("more tea")], ALICE)
    index.upsert(facts[:1])
    index.set_cursor(2)

    sync(store, index)
    assert found(index) == live(store)


def test_an_erased_index_is_filled_again(store, index):
    store.add([NewFact("tea")], ALICE)
    sync(store, index)
    erase(store, index)
    assert found(index) == []
    assert sync(store, index) == 1
    assert found(index) == live(store)


def test_an_index_erased_during_a_sync_misses_nothing(store):
    class Slow(FakeEmbedder):
        def embed(self, texts):
            if self.calls == 2:
                erase(store, index)
            return super().embed(texts)

    index = HybridRecall(":memory:", Slow())
    store.add([NewFact(f"tea {i}") for i in range(6)], ALICE)
    sync(store, index, page=1)
    assert found(index) == live(store)
    index.close()


def test_only_one_of_two_restarts_counts(store, index):
    facts = store.add([NewFact("tea")], ALICE)
    assert index.restart("", "fresh")
    index.upsert(facts)
    assert not index.restart("", "other")
    assert found(index) == live(store)
    assert index.place() == (0, "fresh")


def test_page_must_be_positive(store, index):
    with pytest.raises(ConfigurationError, match="page=0"):
        sync(store, index, page=0)


def test_any_order_of_changes_ends_the_same(store, index):
    chance = random.Random(5)
    facts = []
    for _ in range(150):
        if not facts or chance.random() < 0.5:
            facts += store.add([NewFact(f"tea {chance.random()}")], ALICE)
        elif chance.random() < 0.5:
            store.update(chance.choice(facts).id, ALICE, text=f"tea {chance.random()}")
        else:
            gone = facts.pop(chance.randrange(len(facts)))
            store.delete(gone.id, ALICE, hard=chance.random() < 0.5)
        if chance.random() < 0.2:
            sync(store, index, page=chance.randint(1, 5))
    sync(store, index)
    fresh = HybridRecall(":memory:", FakeEmbedder())
    sync(store, fresh)

    assert found(index) == found(fresh) == live(store)
    assert ask(index, "tea 0", top_k=20) == ask(fresh, "tea 0", top_k=20)
    fresh.close()
