"""Facts read in two windows, told to a memory on the real engine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from inferscale_sdk import InjectionStatus, Memory, VLLMEngine
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.ingest.mean import MeanOfWindows
from inferscale_sdk.ingest.related import RelatedFacts
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.testing.fake_embedder import FakeEmbedder

pytestmark = pytest.mark.engine

PLACES = ("Oslo", "Bergen", "Tromsø", "Bodø", "Molde", "Voss", "Narvik", "Alta", "Vardø", "Hamar")
QUESTION, SHORT = "Where does Mara's sister live?", Sampling(max_tokens=12)


def test_told_answered_changed_and_forgotten(engine: VLLMEngine, tmp_path: Path) -> None:
    window = MeanOfWindows(PrecedingTurns(4), RelatedFacts(2, group=2))
    with Memory(
        engine, path=tmp_path, embedder=FakeEmbedder(), window=window, live_facts=0
    ) as memory:
        told = [f"Mara spent day {i} of the journey in {place}." for i, place in enumerate(PLACES)]
        memory.add([*told, "Mara's sister lives in Lisbon."], user_id="mara")
        assert memory.wait_encoded(120, user_id="mara")
        progress = memory.stats().encoding
        assert (progress.encoded, progress.failed) == (11, 0)
        answer = memory.answer(QUESTION, user_id="mara", top_k=6, sampling=SHORT)
        assert answer.report.status is InjectionStatus.INJECTED, answer.report
        assert "Lisbon" in answer.text

        # Nothing is left of the first readings, on the server or to be forgotten there.
        store, deadline = memory.store, time.monotonic() + 10
        while len(store.dropped_keys()) < 11 and time.monotonic() < deadline:
            time.sleep(0.05)
        readings = store.dropped_keys()
        assert len(readings) == 11 and store.forget_queue() == []
        assert engine.locate(readings) == {}

        fact = memory.get_all(user_id="mara", limit=1)[0]
        memory.delete(fact.id, user_id="mara", hard=True)
        assert memory.wait_encoded(120, user_id="mara")
        assert memory.stats().encoding.encoded > 11, "what was read beside it is encoded again"
        assert engine.locate(store.dropped_keys()) == {}
        again = memory.answer(QUESTION, user_id="mara", top_k=6, sampling=SHORT)
        assert again.report.status is InjectionStatus.INJECTED, again.report
        assert "Lisbon" in again.text
