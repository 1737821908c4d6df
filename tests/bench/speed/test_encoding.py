"""Waiting for facts to be encoded ends when nothing is encoded any more, not when time is up."""

import time
from contextlib import contextmanager

import pytest

from inferscale_sdk.bench.speed.encoding import encode_waiting, wait_while_encoding
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.errors import EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import NewFact

N_FACTS = 8


class Stumbling(FakeEngine):
    """Does not answer the first encode requests in time."""

    stumbles = 0

    def encode(self, plan):
        if self.stumbles:
            self.stumbles -= 1
            raise EngineTimeout("sent nothing for 60 s")
        return super().encode(plan)


@pytest.fixture
def engine():
    return Stumbling()


class Told:
    """A listener that keeps what it was told last."""

    def __init__(self):
        self.done = {}

    @contextmanager
    def progress(self, what, total):
        yield lambda done: self.done.__setitem__(what, (done, total))


def opened(engine, path, *, background):
    return Memory(
        engine,
        path=path,
        embedder=FakeEmbedder(),
        window=PrecedingTurns(1, 1),
        background=background,
    )


@pytest.fixture(params=[False, True], ids=["here", "in a thread"])
def memory(engine, tmp_path, request):
    with opened(engine, tmp_path, background=request.param) as made:
        yield made


def remember(memory):
    memory.add_facts([NewFact(f"fact number {i}", "c") for i in range(N_FACTS)])


def test_a_slow_machine_is_waited_for(engine, memory):
    engine.faults.delay_s = 0.2
    remember(memory)
    started = time.monotonic()
    wait_while_encoding(memory, patience_seconds=0.7)
    assert time.monotonic() - started > 0.7
    assert memory.stats().pending == 0


def test_a_request_that_took_too_long_ends_nothing(engine, memory):
    engine.stumbles = 2
    remember(memory)
    wait_while_encoding(memory, patience_seconds=30)
    assert memory.stats().pending == 0


def test_when_nothing_is_encoded_any_more_the_way_out_is_named(engine, memory):
    engine.faults.encode_error = EngineTimeout("sent nothing for 60 s")
    remember(memory)
    with pytest.raises(EngineError, match=f"{N_FACTS} facts wait .* run again, goes on from there"):
        wait_while_encoding(memory, patience_seconds=0.3)
    engine.faults.encode_error = None
    wait_while_encoding(memory, patience_seconds=30)
    assert memory.stats().pending == 0


def test_an_engine_that_is_gone_is_not_waited_for(engine, memory):
    engine.faults.unavailable = True
    remember(memory)
    with pytest.raises(EngineUnavailable):
        wait_while_encoding(memory, patience_seconds=60)


def test_an_engine_that_cannot_inject_is_not_waited_for(tmp_path):
    with opened(FakeEngine(can_inject=False), tmp_path, background=False) as memory:
        remember(memory)
        with pytest.raises(EngineError, match="can_inject=False"):
            wait_while_encoding(memory, patience_seconds=60)


def test_what_is_done_is_told(engine, tmp_path):
    told = Told()
    engine.stumbles = 1
    with opened(engine, tmp_path, background=False) as memory:
        remember(memory)
        assert encode_waiting(memory, Stages(told)) == N_FACTS
        assert told.done == {"Encoding facts": (N_FACTS, N_FACTS)}
        assert encode_waiting(memory, Stages(told)) == 0
