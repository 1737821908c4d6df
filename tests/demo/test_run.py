"""The demo from start to verdict, without a model."""

from contextlib import contextmanager

import pytest

from inferscale_sdk import models
from inferscale_sdk.bench.speed.arms import BASIC_ARMS, Arm
from inferscale_sdk.config import settings
from inferscale_sdk.demo import run
from inferscale_sdk.demo.life import load_life
from inferscale_sdk.errors import EngineTimeout
from inferscale_sdk.memory import Memory
from inferscale_sdk.recall import embedders
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine

FAST = run.DemoOptions(rounds=1)


class Server(FakeEngine):
    """A fake engine that counts external hits as vLLM does."""

    base_url = "http://127.0.0.1:1"

    def hits(self) -> int:
        return sum(answer.loaded_tokens for answer in self.injections)


class Silent:
    """A listener that remembers what it heard."""

    def __init__(self):
        self.stages = []
        self.told = {}

    @contextmanager
    def stage(self, what):
        self.stages.append(what)
        yield

    @contextmanager
    def progress(self, what, total):
        yield lambda done: self.told.__setitem__(what, (done, total))


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path))
    settings.cache_clear()
    fake = Server()
    monkeypatch.setattr(models, "bundled_model_path", lambda: tmp_path)
    monkeypatch.setattr(run, "_launch", lambda _folder: fake)
    monkeypatch.setattr(run, "read_counter", lambda _url, _name: fake.hits())
    monkeypatch.setattr(embedders, "bundled_embedder", FakeEmbedder)
    yield fake
    settings.cache_clear()


def test_the_first_run_encodes_everything_and_proves_it(server):
    listener = Silent()

    report = run.run_demo(listener, FAST)

    turns = len(load_life().turns)
    assert (report.facts, report.encoded) == (turns, turns)
    assert listener.told["Encoding facts"] == (turns, turns)
    done, total = listener.told["Asking"]
    assert done == total
    assert report.proved
    assert report.external_hits_delta == report.injected_tokens > 0
    for k in (5, 50):
        assert report.cell(Arm.INJECT, k).injected_tokens > 0
        assert report.cell(Arm.PROMPT, k).injected_tokens == 0
        tokens = {report.cell(arm, k).memory_tokens for arm in BASIC_ARMS}
        assert len(tokens) == 1
    assert len(report.answers) == 16
    assert server.closed


def test_the_second_run_encodes_nothing(server):
    run.run_demo(Silent(), FAST)
    n_encodes = len(server.encodes)

    report = run.run_demo(Silent(), FAST)

    assert report.encoded == 0
    assert len(server.encodes) == n_encodes
    assert report.proved


def test_kv_that_was_deleted_is_encoded_again(server):
    before = run.run_demo(Silent(), FAST)
    server.lose()

    after = run.run_demo(Silent(), FAST)

    assert after.cell(Arm.INJECT, 50).injected_tokens == before.cell(Arm.INJECT, 50).injected_tokens
    assert after.proved


def test_a_request_that_took_too_long_does_not_end_the_demo(server, monkeypatch):
    encode, late = server.encode, [EngineTimeout("sent nothing for 60 s")]
    monkeypatch.setattr(server, "encode", lambda plan: _raise(late.pop()) if late else encode(plan))

    assert run.run_demo(Silent(), FAST).proved


def _raise(error):
    raise error


def test_a_counter_that_disagrees_is_no_proof(server, monkeypatch):
    monkeypatch.setattr(run, "read_counter", lambda _url, _name: server.hits() // 2)
    monkeypatch.setattr(run, "settled_counter", lambda read, **_: read())

    assert not run.run_demo(Silent(), FAST).proved


def test_a_memory_that_holds_something_else_is_made_anew(tmp_path):
    life = load_life()
    with Memory(path=tmp_path, background=False) as memory:
        memory.add("left over from an interrupted run", user_id=life.user_id)

        assert run.remember(memory, life)
        assert not run.remember(memory, life)

        texts = [fact.text for fact in memory.get_all(user_id=life.user_id)]
        assert texts == [turn.text for turn in life.turns]
        speakers = {fact.speaker for fact in memory.get_all(user_id=life.user_id)}
        assert speakers == {"Nora", "assistant"}
