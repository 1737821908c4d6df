"""The embedded engine on a small random model: what is kept, injected and captured."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers_scene import ANSWER, FACT, PREAMBLE, TOKENS, encode_plan, prompt_plan  # noqa: E402

from inferscale_sdk.engines.transformers import TransformersEngine  # noqa: E402
from inferscale_sdk.kv.key import UNOWNED  # noqa: E402
from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan  # noqa: E402
from inferscale_sdk.protocol import CaptureSpan, EncodeOp, Reason  # noqa: E402
from inferscale_sdk.types import InjectionStatus  # noqa: E402

Embed = Callable[..., TransformersEngine]


@pytest.fixture
def engine(folder: Path, embed: Embed) -> TransformersEngine:
    return embed(folder)


# -- injection -----------------------------------------------------------------------------


def test_a_preamble_is_learnt_on_the_way(engine: TransformersEngine) -> None:
    first = engine.generate(prompt_plan(engine), ANSWER).report
    second = engine.generate(prompt_plan(engine), ANSWER).report

    assert (first.injected_tokens, first.missing_keys) == (0, (PREAMBLE, FACT))
    assert (second.injected_tokens, second.missing_keys) == (30, (FACT,))
    assert second.status is InjectionStatus.PARTIAL
    assert second.reason == Reason.MISSING
    assert engine.stats().counters["learned_preambles"] == 1


@pytest.mark.parametrize("owner", ["", "0a"])
def test_a_learnt_preamble_counts_against_an_owner(engine: TransformersEngine, owner: str) -> None:
    engine.generate(prompt_plan(engine, owner=owner), ANSWER)
    kept = engine._runtime.ready().store.get(PREAMBLE)
    assert kept is not None
    assert kept.owner == (owner or UNOWNED)


def test_a_fact_is_not_learnt_in_place_of_a_preamble(engine: TransformersEngine) -> None:
    plan = prompt_plan(engine, segments=(PlannedSegment(FACT, 70, "fact", "f"),))

    for _ in range(2):
        assert engine.generate(plan, ANSWER).report.injected_tokens == 0


def test_one_token_is_left_to_compute(engine: TransformersEngine) -> None:
    engine.encode(encode_plan(engine))
    plan = prompt_plan(engine, token_ids=TOKENS[:70])

    completion = engine.generate(plan, ANSWER)

    assert completion.report.injected_tokens == 69
    assert completion.report.prefilled_tokens == 1
    assert completion.report.status is InjectionStatus.INJECTED
    assert completion.text == engine.generate(PromptPlan(TOKENS[:70]), ANSWER).text


def test_a_plan_for_another_model_is_text(engine: TransformersEngine) -> None:
    engine.encode(encode_plan(engine))

    report = engine.generate(prompt_plan(engine, fingerprint="f" * 32), ANSWER).report

    assert report.status is InjectionStatus.TEXT
    assert "planned for model ffff" in report.reason


def test_segments_of_a_wrong_shape_are_computed_instead(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.encode(encode_plan(engine))
    expected = engine.generate(PromptPlan(TOKENS), ANSWER).text
    get = engine._runtime.store.get

    def cut(key: str) -> Any:
        segment = get(key)
        return segment and replace(segment, data=segment.data[:2].contiguous())

    monkeypatch.setattr(engine._runtime.store, "get", cut)
    completion = engine.generate(prompt_plan(engine), ANSWER)

    assert completion.text == expected
    assert completion.report.reason == Reason.LOAD_FAILED
    assert completion.report.injected_tokens == 0
    assert engine.stats().counters["failed_loads"] == 1


def test_a_damaged_file_is_set_aside_and_computed(
    folder: Path, embed: Embed, tmp_path: Path
) -> None:
    store = tmp_path / "kv"
    engine = embed(folder, persist=True, disk_path=store)
    engine.encode(encode_plan(engine))
    engine.close()
    (file,) = store.rglob(f"{FACT}.ifs")
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)

    again = embed(folder, persist=True, disk_path=store)
    report = again.generate(prompt_plan(again), ANSWER).report

    assert (report.injected_tokens, report.missing_keys) == (30, (FACT,))
    assert again.stats().tiers["disk"]["quarantined"] == 1


def test_segments_outlive_the_engine(folder: Path, embed: Embed, tmp_path: Path) -> None:
    store = tmp_path / "kv"
    engine = embed(folder, persist=True, disk_path=store)
    engine.encode(encode_plan(engine))
    text = engine.generate(prompt_plan(engine), ANSWER).text
    engine.close()

    again = embed(folder, persist=True, disk_path=store)
    completion = again.generate(prompt_plan(again), ANSWER)

    assert completion.report.injected_tokens == 70
    assert completion.text == text
    if os.name == "posix":
        assert store.stat().st_mode & 0o777 == 0o700


def test_forgetting_reaches_the_disk(folder: Path, embed: Embed, tmp_path: Path) -> None:
    engine = embed(folder, persist=True, disk_path=tmp_path / "kv")
    engine.encode(encode_plan(engine))

    assert engine.forget([FACT, FACT, "c" * 40]) == 1
    assert list((tmp_path / "kv").rglob(f"{FACT}.ifs")) == []
    assert engine.generate(prompt_plan(engine), ANSWER).report.missing_keys == (FACT,)


def test_a_full_store_says_so(folder: Path, embed: Embed) -> None:
    engine = embed(folder, host_bytes=1 << 20)
    info = engine.info()
    n_tokens = info.max_model_len
    assert info.bytes_per_token * n_tokens <= 1 << 20
    captures = tuple(CaptureSpan(key=f"{i:040x}", start=0, stop=n_tokens) for i in range(3))
    op = EncodeOp(fingerprint=info.fingerprint, captures=captures)

    assert len(engine.encode(EncodePlan((1,) * n_tokens, op, (), ())).stored) == 3
    # What was used longest ago made room.
    assert engine.stats().tiers["host"]["evictions"] == 2


def test_a_segment_that_fits_nowhere_is_not_stored(
    tiny_model: Callable[..., Path], embed: Embed
) -> None:
    engine = embed(tiny_model(max_position_embeddings=4096), host_bytes=1 << 20)
    op = EncodeOp(
        fingerprint=engine.info().fingerprint,
        captures=(CaptureSpan(key=FACT, start=0, stop=4096),),
    )

    answer = engine.encode(EncodePlan((1,) * 4096, op, ("f",), ((),)))

    assert answer.failed == {FACT: Reason.STORE_FAILED}
    assert engine.stats().counters["failed_captures"] == 1


# -- encoding ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_chunks_do_not_change_what_is_captured(folder: Path, embed: Embed, chunk: int) -> None:
    one, other = embed(folder), embed(folder, prefill_chunk_tokens=chunk)
    for engine in (one, other):
        engine.encode(encode_plan(engine))

    for key in (PREAMBLE, FACT):
        a, b = one._runtime.store.get(key), other._runtime.store.get(key)
        assert a is not None and b is not None
        assert a.origin == b.origin == (0 if key == PREAMBLE else 30)
        torch.testing.assert_close(a.data, b.data, atol=1e-5, rtol=1e-5)


def test_the_mean_of_two_readings_is_kept(folder: Path, embed: Embed) -> None:
    engine = embed(folder)
    op = encode_plan(engine).op
    engine.encode(encode_plan(engine))
    span = CaptureSpan(key="d" * 40, start=70, stop=110, beside=FACT)
    # The same tokens again, behind themselves and whatever else.
    again = (*TOKENS[:70], *TOKENS[30:70])
    alone = CaptureSpan(key="e" * 40, start=70, stop=110)
    for capture in (span, alone):
        plan = EncodePlan(again, op.model_copy(update={"captures": (capture,)}), ("f",), ((),))
        assert engine.encode(plan).failed == {}

    store = engine._runtime.store
    mean, second, first = (store.get(key) for key in ("d" * 40, "e" * 40, FACT))
    assert mean is not None and second is not None and first is not None
    assert mean.origin == 70
    half = (second.data[:, 1] + first.data[:, 1]) / 2
    torch.testing.assert_close(mean.data[:, 1], half, atol=1e-6, rtol=1e-5)
    # In layer 0 keys know no context: turned to the same place both readings have the same.
    torch.testing.assert_close(mean.data[0, 0], second.data[0, 0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(mean.data[-1, 0], second.data[-1, 0], atol=1e-3)


@pytest.mark.parametrize(
    ("beside", "reason"), [("d" * 40, Reason.MISSING), (PREAMBLE, Reason.TOKEN_MISMATCH)]
)
def test_a_mean_with_something_else_is_not_kept(
    engine: TransformersEngine, beside: str, reason: Reason
) -> None:
    engine.encode(encode_plan(engine))
    span = CaptureSpan(key="e" * 40, start=30, stop=70, beside=beside)

    assert engine.encode(encode_plan(engine, captures=(span,))).failed == {span.key: reason}
    assert engine.locate([span.key]) == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "f" * 32}, Reason.WRONG_MODEL),
        ({"captures": (CaptureSpan(key=FACT, start=0, stop=121),)}, Reason.MALFORMED),
        (
            {
                "captures": (
                    CaptureSpan(key=FACT, start=0, stop=4),
                    CaptureSpan(key=FACT, start=4, stop=8),
                )
            },
            Reason.MALFORMED,
        ),
    ],
)
async def test_what_cannot_be_encoded_fails_with_a_reason(
    engine: TransformersEngine, changes: dict[str, Any], reason: Reason
) -> None:
    plan = encode_plan(engine, **changes)

    assert set(engine.encode(plan).failed.values()) == {reason}
    assert set((await engine.aencode(plan)).failed.values()) == {reason}
