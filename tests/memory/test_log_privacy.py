"""No log record of any level holds the text of a fact, whatever goes wrong."""

from __future__ import annotations

import logging

import pytest

from inferscale_sdk.errors import EngineError, StoreError
from inferscale_sdk.recall.hybrid import HybridRecall
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

MARKER = "zanzibarxylophone"
FACT = f"My {MARKER} is in the attic"


@pytest.fixture
def everything(caplog):
    """Every record of every logger, down to DEBUG; asserts at the end."""
    caplog.set_level(logging.DEBUG)
    yield caplog
    for record in caplog.get_records("call"):
        shown = logging.Formatter("%(message)s %(args)s").format(record)
        assert MARKER not in shown.lower(), (record.name, record.levelname, shown)
        for value in vars(record).values():
            assert MARKER not in repr(value).lower(), (record.name, record.levelname)


def test_a_whole_life(make, everything):
    memory = make(background=True)
    first, second = memory.add([FACT, f"{FACT} no more"], user_id="alice")
    assert memory.wait_encoded(10)
    memory.search(MARKER, user_id="alice")
    memory.answer(f"Where is my {MARKER}?", user_id="alice")
    list(memory.stream(f"Where is my {MARKER}?", user_id="alice"))
    memory.resolve([str(h) for h in memory.handles(MARKER, user_id="alice")], user_id="bob")
    memory.update(first.id, text=f"{FACT}, changed", user_id="alice")
    memory.delete(second.id, user_id="alice", hard=True)
    memory.delete_all(user_id="alice")
    memory.flush(5)
    memory.close()
    assert everything.records


def test_a_life_of_failures(make, engine, everything, monkeypatch):
    def quoting(*_args, **_kwargs):
        raise StoreError(f"cannot write {FACT}")

    memory = make()
    facts = memory.add([FACT, "I like tea"], user_id="alice")
    engine.faults.encode_error = EngineError(f"the server says: {FACT}")
    memory.wait_encoded(0.1)
    engine.faults.encode_error = None
    with monkeypatch.context() as patch:
        patch.setattr(HybridRecall, "search", quoting)
        assert memory.answer(MARKER, user_id="alice").report.reason
    with monkeypatch.context() as patch:
        patch.setattr(memory.store, "encodings", quoting)
        memory.answer(MARKER, user_id="alice")
    memory._parts.serving.encoder._parking._parked.clear()
    assert memory.wait_encoded(5)
    engine.faults.inject_error = EngineError(f"the server quotes {FACT}")
    memory.answer(MARKER, user_id="alice")
    engine.faults.inject_error = None
    with monkeypatch.context() as patch:
        patch.setattr(HybridRecall, "remove", quoting)
        memory.delete(facts[0].id, user_id="alice")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "forget", quoting)
        memory.delete(facts[1].id, user_id="alice")

    def bad_extractor(turns):
        raise ValueError(f"no facts in {turns[0].content}")

    memory.add(FACT, user_id="alice", extractor=bad_extractor)
    assert len(everything.records) > 5


def test_a_thread_that_cannot_encode_says_so_without_quoting(make, engine, everything, monkeypatch):
    memory = make(background=True)

    def quoting(*_args, **_kwargs):
        raise StoreError(f"cannot record {FACT}")

    monkeypatch.setattr(memory.store, "record_encodings", quoting)
    memory.add(FACT, user_id="alice")
    assert not memory.wait_encoded(1)
    memory.close()
    assert "StoreError at " in everything.text


def test_a_thread_that_cannot_index_says_so_without_quoting(make, everything):
    class Broken(FakeEmbedder):
        def embed(self, texts):
            raise RuntimeError(f"cannot embed {texts}")

    memory = make(background=True, embedder=Broken())
    memory.add(FACT, user_id="alice")
    memory.close()
