"""A store, an engine and an encoder without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.ingest.encoder import Encoder
from inferscale_sdk.ingest.retry import RetryPolicy
from inferscale_sdk.ingest.windows import PrecedingTurns, WindowStrategy
from inferscale_sdk.prompt.plan import Planner
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import Fact, Namespace, NewFact

ALICE = Namespace(user_id="alice")
BOB = Namespace(user_id="bob")
QUICK = RetryPolicy(base_seconds=0.01, max_seconds=0.05, max_attempts=3)

AddFacts = Callable[..., list[Fact]]
MakeEncoder = Callable[..., Encoder]


@pytest.fixture
def store(tmp_path) -> Iterator[SQLiteFactStore]:
    store = SQLiteFactStore(tmp_path / "facts.db")
    yield store
    store.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def planner(store, engine) -> Planner:
    return Planner(engine.tokenizer, store_secret=store.secret)


@pytest.fixture
def add(store) -> AddFacts:
    def add(
        n: int, owner: Namespace = ALICE, conversation: str = "c", texts: Sequence[str] = ()
    ) -> list[Fact]:
        texts = texts or [f"{owner.user_id} remembers thing number {i:03d}" for i in range(n)]
        return store.add([NewFact(t, conversation_id=conversation) for t in texts], owner)

    return add


@pytest.fixture
def make_encoder(store, engine, planner) -> MakeEncoder:
    def make(
        strategy: WindowStrategy | None = None, *, engine: FakeEngine = engine, **kwargs
    ) -> Encoder:
        kwargs.setdefault("retry", QUICK)
        return Encoder(store, engine, planner, strategy or PrecedingTurns(4, 4), **kwargs)

    return make
