"""A bed without a model: an engine that counts external hits and knows tiers."""

from __future__ import annotations

from contextlib import contextmanager

from inferscale_sdk.bench.speed import ttft as ttft_module
from inferscale_sdk.bench.speed.bed import ASKED, OTHERS, Bed, bench_window
from inferscale_sdk.bench.speed.corpus import load_corpus
from inferscale_sdk.memory import Memory
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.types import NewFact


class TieredFake(FakeEngine):
    """Keeps the segments of the last ``room`` prompts in host memory, all of them on disk."""

    base_url = "http://127.0.0.1:1"
    room = 1

    def hits(self) -> int:
        return sum(answer.loaded_tokens for answer in self.injections)

    def locate(self, keys):
        recent = [p for p in self.prompts if p.segments][-self.room :]
        in_host = {segment.key for plan in recent for segment in plan.segments}
        return {
            key: (("host", "disk") if key in in_host else ("disk",))
            for key in keys
            if key in self.segments
        }


class Silent:
    """A listener that remembers how far everything came."""

    def __init__(self):
        self.told = {}

    @contextmanager
    def stage(self, what):
        yield

    @contextmanager
    def progress(self, what, total):
        yield lambda done: self.told.__setitem__(what, (done, total))


@contextmanager
def fake_bed(folder, *, facts=40, others=20, engine=None):
    corpus = load_corpus(None)
    engine = engine or TieredFake(lambda _plan, _text: "one two three four")
    with Memory(
        engine,
        path=folder,
        embedder=FakeEmbedder(),
        window=bench_window(),
        background=False,
        multi_user=True,
    ) as memory:
        for user, texts in (
            (ASKED, corpus.facts(facts)),
            (OTHERS, corpus.facts(others, start=facts)),
        ):
            memory.add_facts([NewFact(text, user) for text in texts], user_id=user)
        memory.wait_encoded(30)
        yield Bed(memory, engine)


def count_hits_of(monkeypatch, engine, module=ttft_module):
    monkeypatch.setattr(module, "read_counter", lambda _url, _name: engine.hits())
