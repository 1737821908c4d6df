"""The embedded engine on a small random model: what it refuses, what it survives, its end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers_scene import ANSWER, ENDLESS, TOKENS, encode_plan  # noqa: E402

from inferscale_sdk.engines.base import Sampling  # noqa: E402
from inferscale_sdk.engines.transformers import TransformersEngine  # noqa: E402
from inferscale_sdk.errors import (  # noqa: E402
    ConfigurationError,
    ContextOverflow,
    EngineError,
    EngineUnavailable,
)
from inferscale_sdk.prompt.base import PromptPlan  # noqa: E402

Embed = Callable[..., TransformersEngine]


@pytest.fixture
def engine(folder: Path, embed: Embed) -> TransformersEngine:
    return embed(folder)


def test_a_failing_model_fails_its_requests_and_no_others(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info()
    assert engine._runtime._core is not None
    runner = engine._runtime._core.runner
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> Any:
            raise RuntimeError("out of memory")

        patch.setattr(runner, "step", broken)
        with pytest.raises(EngineError, match="out of memory"):
            engine.generate(PromptPlan(TOKENS), ANSWER)
        patch.setattr(runner, "prefill", broken)
        with pytest.raises(EngineError, match="out of memory"):
            engine.encode(encode_plan(engine))
    assert engine.generate(PromptPlan(TOKENS), ANSWER).text


def test_closing_fails_what_is_under_way(engine: TransformersEngine) -> None:
    chunks = engine.stream(PromptPlan(TOKENS), Sampling(max_tokens=800, extra=ENDLESS))
    next(chunks)
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        for _ in chunks:
            pass
    with pytest.raises(EngineUnavailable, match="closed"):
        engine.generate(PromptPlan(TOKENS), ANSWER)


async def test_aclose(engine: TransformersEngine) -> None:
    await engine.aclose()
    with pytest.raises(EngineUnavailable):
        await engine.agenerate(PromptPlan(TOKENS))


def test_an_empty_prompt_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(EngineError, match="no tokens"):
        engine.generate(PromptPlan(()))


def test_errors_of_a_plan_are_raised_by_the_call_itself(engine: TransformersEngine) -> None:
    with pytest.raises(ContextOverflow):
        engine.stream(PromptPlan((1,) * 1024), ANSWER)
    with pytest.raises(ConfigurationError, match="top_p"):
        engine.stream(PromptPlan(TOKENS), Sampling(top_p=2.0))


def test_max_model_len_is_kept_to(folder: Path, embed: Embed) -> None:
    engine = embed(folder, max_model_len=300)
    assert engine.info().max_model_len == 300
    with pytest.raises(ContextOverflow):
        engine.generate(PromptPlan((1,) * 293), ANSWER)
    assert engine.generate(PromptPlan((1,) * 292), ANSWER).completion_tokens == 8


def test_a_context_too_short_for_the_probe_is_text(folder: Path, embed: Embed) -> None:
    info = embed(folder, max_model_len=100).info()
    assert not info.can_inject
    assert "shorter than the probe's" in info.reason


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"host_bytes": 5}, "host_bytes=5"),
        ({"max_batch": 0}, "max_batch=0"),
        ({"prefill_chunk_tokens": 0}, "prefill_chunk_tokens=0"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"device": "nowhere"}, "device='nowhere'"),
        ({"max_model_len": 5000}, "max_model_len=5000"),
    ],
)
def test_wrong_arguments_are_told_early(
    folder: Path, embed: Embed, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigurationError, match=what):
        embed(folder, **options)


def test_a_missing_model_is_told_early(tmp_path: Path, embed: Embed) -> None:
    with pytest.raises(ConfigurationError, match="not a folder"):
        embed(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no model can be loaded"):
        embed(tmp_path / "empty")


def test_the_fingerprint_is_of_model_and_dtype(folder: Path, embed: Embed) -> None:
    names = {embed(folder, dtype=dtype).info().fingerprint for dtype in ("float32", "bfloat16")}
    assert len(names) == 2
    assert embed(folder).info().fingerprint in names


def test_info_says_what_there_is(engine: TransformersEngine) -> None:
    info = engine.info()
    assert info.model.startswith("model-")
    assert info.bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert info.block_size == 0
    assert info.details["device"] == "cpu"
    assert info.details["n_layers"] == 3
    assert info.details["unrotated_key_error"] < 1e-5


def test_a_dropped_engine_leaves_no_thread(folder: Path) -> None:
    engine = TransformersEngine(folder, device="cpu", persist=False)
    engine.info()
    assert engine._runtime._scheduler is not None
    thread: threading.Thread = engine._runtime._scheduler._thread
    assert thread.is_alive()

    del engine
    gc.collect()

    thread.join(5.0)
    assert not thread.is_alive()
