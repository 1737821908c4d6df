"""Kill −9 at the worst moments: what was stored is found again, what was torn is never loaded."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pytest import MonkeyPatch

from inferscale_sdk.errors import EngineError
from inferscale_sdk.types import InjectionStatus

if TYPE_CHECKING:
    from inferscale_sdk import VLLMEngine

pytestmark = pytest.mark.engine

FACTS = [f"Room {i} of the museum shows {i * 7 + 3} paintings of the sea." for i in range(60)]
QUESTION = "How many paintings are in room 17?"


def answer(memory, *, inject: bool = True):
    return memory.answer(QUESTION, user_id="ada", top_k=20, max_tokens=12, inject=inject)


def test_killed_between_encode_and_question(doomed: VLLMEngine, remember) -> None:
    memory = remember(doomed)
    memory.add(FACTS, user_id="ada")
    assert memory.wait_encoded(timeout=120, user_id="ada")
    before = answer(memory)
    assert before.report.status is InjectionStatus.INJECTED
    encoded = memory.stats().encoding.encoded

    doomed.kill()
    with pytest.raises(EngineError):
        doomed.stats()
    doomed.restart()

    assert memory.wait_encoded(timeout=60, user_id="ada")
    after = answer(memory)
    assert after.report.status is InjectionStatus.INJECTED
    assert after.report.injected_tokens == before.report.injected_tokens
    assert after.text == before.text
    assert memory.stats().encoding.encoded == encoded  # nothing was encoded again
    assert doomed.stats().counters.get("captured_segments", 0) == 0


def test_killed_during_encode(doomed: VLLMEngine, remember, tmp_path: Path) -> None:
    """Whatever the moment, the next server finds whole segments or none."""
    memory = remember(doomed)
    memory.add([f"Second visit: {fact}" for fact in FACTS], user_id="ada")
    worker = threading.Thread(target=lambda: _encode_until_it_breaks(memory))
    worker.start()
    # Wait for the first captured segments, then strike while more are under way.
    deadline = time.monotonic() + 60
    while doomed.stats().counters.get("captured_segments", 0) < 10:
        assert time.monotonic() < deadline
    doomed.kill()
    worker.join(timeout=120)
    assert not worker.is_alive()
    doomed.restart()

    during = answer(memory)
    plain = answer(memory, inject=False)
    assert during.facts and plain.facts
    assert memory.wait_encoded(timeout=120, user_id="ada")
    healed = answer(memory)
    assert healed.report.status is InjectionStatus.INJECTED
    stats = doomed.stats()
    assert stats.counters.get("failed_loads", 0) == 0


def _encode_until_it_breaks(memory) -> None:
    try:
        memory.wait_encoded(timeout=5, user_id="ada")
    except EngineError:
        return


def test_server_gone_is_a_clear_error_and_comes_back(doomed: VLLMEngine, remember) -> None:
    memory = remember(doomed)
    memory.add(FACTS[:5], user_id="ada")
    assert memory.wait_encoded(timeout=60, user_id="ada")
    doomed.kill()
    with pytest.raises(EngineError, match=r"127\.0\.0\.1"):
        answer(memory)
    memory.add(FACTS[5:8], user_id="ada")  # remembering needs no server
    doomed.restart()
    assert memory.wait_encoded(timeout=60, user_id="ada")
    assert answer(memory).report.status is InjectionStatus.INJECTED
    assert memory.count(user_id="ada") == 8


@pytest.mark.slow
def test_segment_files_lost_are_prefilled_then_encoded_again(
    doomed: VLLMEngine, remember, doomed_folder: Path
) -> None:
    memory = remember(doomed)
    memory.add([f"Third visit: {fact}" for fact in FACTS[:20]], user_id="ada")
    assert memory.wait_encoded(timeout=60, user_id="ada")
    whole = answer(memory)
    assert whole.report.status is InjectionStatus.INJECTED
    doomed.kill()
    files = sorted((doomed_folder / "kv").rglob("*.ifs"), key=lambda path: path.stat().st_mtime)
    files = files[-20:]
    for i, path in enumerate(files):
        if i % 3 == 0:
            path.unlink()
        elif i % 3 == 1:
            path.write_bytes(path.read_bytes()[:-100])
        else:
            raw = bytearray(path.read_bytes())
            raw[-50] ^= 0xFF
            path.write_bytes(raw)
    doomed.restart()

    hurt = answer(memory)
    assert hurt.report.status in {InjectionStatus.PARTIAL, InjectionStatus.TEXT}
    assert hurt.report.missing_keys
    assert hurt.report.reason
    assert memory.wait_encoded(timeout=60, user_id="ada")
    # Learning what was lost takes as many answers as there are gaps at most.
    for _ in range(3):
        healed = answer(memory)
        memory.wait_encoded(timeout=60, user_id="ada")
    assert healed.report.status is InjectionStatus.INJECTED


def test_client_leaving_in_mid_stream(doomed: VLLMEngine, remember) -> None:
    memory = remember(doomed)
    memory.add(FACTS[:10], user_id="ada")
    assert memory.wait_encoded(timeout=60, user_id="ada")
    for _ in range(5):
        chunks = memory.stream(QUESTION, user_id="ada", top_k=10, max_tokens=400)
        assert next(chunks).text
        chunks.close()
    deadline = time.monotonic() + 30
    while doomed.stats().tiers["host"]["pinned_bytes"]:
        assert time.monotonic() < deadline, "pins leaked"
    assert answer(memory).report.status is InjectionStatus.INJECTED


@pytest.mark.slow
def test_wrong_rotation_is_refused_with_the_reason(
    model_path: Path, tmp_path: Path, remember, monkeypatch: MonkeyPatch
) -> None:
    """A rotary base that is not the model's: the probe notices, everything is served as text."""
    from inferscale_sdk import VLLMEngine

    with VLLMEngine.launch(
        model_path,
        disk_path=tmp_path / "kv",
        log_path=tmp_path / "log",
        max_model_len=2048,
        connector_config={"rope_theta": 10_000.0},
    ) as engine:
        info = engine.info()
        assert not info.can_inject
        assert info.probe.status == "text_only"
        assert "layer" in info.reason and "keys deviate by" in info.reason
        memory = remember(engine)
        memory.add(FACTS[:10], user_id="ada")
        out = answer(memory)
        assert out.text
        assert out.report.status is InjectionStatus.TEXT
        assert out.report.injected_tokens == 0
        assert len(out.facts) == 10
