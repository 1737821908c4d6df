"""Small random models of many families through encode, probe, inject and decode, in this process.

Each is exact, or refused with a reason and served as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferscale_sdk import TransformersEngine  # noqa: E402
from inferscale_sdk.engines.base import Sampling  # noqa: E402
from inferscale_sdk.engines.transformers import proving  # noqa: E402
from inferscale_sdk.prompt.base import EncodePlan, PlannedSegment, PromptPlan  # noqa: E402
from inferscale_sdk.protocol import CaptureSpan, EncodeOp  # noqa: E402
from inferscale_sdk.types import InjectionStatus  # noqa: E402

WINDOW = 24
"""Shorter than the memory of these tests."""

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral window": ("MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "phi3 partial": ("Phi3Config", {"partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}),
    "gemma2": ("Gemma2Config", {"sliding_window": WINDOW, "layer_types": MIXED}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, "layer_types": MIXED}),
    "cohere interleaved": ("CohereConfig", {}),
    "gpt-neox partial": ("GPTNeoXConfig", {"rotary_pct": 0.25}),
    "gpt-j interleaved": ("GPTJConfig", {"rotary_dim": 8}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama dynamic": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
        "dynamic",
    ),
    "gpt2": ("GPT2Config", {}, "rotary"),
    "deepseek-v2 latent": (
        "DeepseekV2Config",
        {
            "kv_lora_rank": 16,
            "q_lora_rank": None,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        "latent",
    ),
}

Make = Callable[..., TransformersEngine]


@pytest.fixture
def make(tiny_model: Callable[..., Path], embed: Callable[..., TransformersEngine]) -> Make:
    """Builds an engine on a random model of a configuration."""

    def build(config_class: str, changes: dict[str, Any], **options: Any) -> TransformersEngine:
        return embed(tiny_model(config_class, **changes), **options)

    return build


PROMPT = tuple((7 * i * i + 13 * i) % 251 for i in range(150))
CUTS = (0, 20, 57, 58, 110)
KEYS = tuple(f"{i:040x}" for i in range(len(CUTS) - 1))
ANSWER = Sampling(max_tokens=10, extra={"ignore_eos": True})


def encode_plan(engine: TransformersEngine, prompt: tuple[int, ...] = PROMPT) -> EncodePlan:
    captures = tuple(
        CaptureSpan(key=key, start=start, stop=stop)
        for key, start, stop in zip(KEYS, CUTS, CUTS[1:], strict=False)
    )
    op = EncodeOp(fingerprint=engine.info().fingerprint, captures=captures)
    return EncodePlan(prompt, op, (), ())


def prompt_plan(engine: TransformersEngine, order: tuple[int, ...]) -> PromptPlan:
    """The segments in an order of choice, with the same question behind them."""
    tokens = [t for i in order for t in PROMPT[CUTS[i] : CUTS[i + 1]]]
    segments = tuple(PlannedSegment(KEYS[i], CUTS[i + 1] - CUTS[i], "fact", f"f{i}") for i in order)
    return PromptPlan(
        token_ids=(*tokens, *PROMPT[CUTS[-1] :]),
        segments=segments,
        fact_ids=tuple(f"f{i}" for i in order),
        fingerprint=engine.info().fingerprint,
    )


@pytest.mark.parametrize("family", EXACT)
def test_exact_family(make: Make, family: str) -> None:
    engine = make(*EXACT[family])
    info = engine.info()
    assert info.can_inject, info.reason
    # float32: what the probe finds is rounding, not a bound wide enough to hide a fault.
    assert info.probe.max_key_error < 1e-5
    assert info.probe.max_value_drift < 1e-5
    error = info.details["unrotated_key_error"]
    assert error is None or error < 1e-5
    assert engine.encode(encode_plan(engine)).failed == {}

    plan = prompt_plan(engine, (0, 1, 2, 3))
    injected = engine.generate(plan, ANSWER)
    text = engine.generate(PromptPlan(token_ids=plan.token_ids), ANSWER)

    assert injected.report.status is InjectionStatus.INJECTED
    assert injected.report.injected_tokens == CUTS[-1]
    assert injected.text == text.text
    assert injected.completion_tokens == ANSWER.max_tokens


@pytest.mark.parametrize("family", REFUSED)
def test_refused_family_is_served_as_text(make: Make, family: str) -> None:
    config_class, changes, why = REFUSED[family]
    engine = make(config_class, changes)
    info = engine.info()
    assert not info.can_inject
    assert why in info.reason
    assert info.fingerprint == ""

    answer = engine.generate(prompt_plan(engine, (0, 1)), ANSWER)

    assert answer.report.status is InjectionStatus.TEXT
    assert answer.report.reason == info.reason
    assert answer.completion_tokens == ANSWER.max_tokens


@pytest.mark.parametrize(
    "family", ["llama yarn", "qwen3", "phi3 partial", "gemma3", "gpt-j interleaved", "smollm3"]
)
def test_moved_segments_are_what_the_model_would_have_written(make: Make, family: str) -> None:
    """Layer 0 sees no context, so its moved keys must be the prefilled ones but for rounding."""
    engine = make(*EXACT[family])
    engine.encode(encode_plan(engine))
    order = (3, 1)
    plan = prompt_plan(engine, order)
    core = engine._runtime._core
    assert core is not None
    from inferscale_sdk.engines.transformers.cache import new_cache, read
    from inferscale_sdk.injection.pieces import gather, pieces_between

    segments = {key: core.store.get(key) for key in KEYS}
    n_tokens = sum(s.n_tokens for s in plan.segments)
    pieces = pieces_between(plan.segments, 0, n_tokens)
    moved = gather(
        pieces, segments, core.proof.layout, core.proof.tables, device=torch.device("cpu")
    )

    cache = new_cache()
    core.runner.prefill(cache, plan.token_ids[:n_tokens])
    fresh = read(cache, 0, n_tokens)

    torch.testing.assert_close(moved[0], fresh[0], atol=2e-5, rtol=2e-5)
    assert not torch.equal(moved[1], fresh[1])  # deeper layers have seen another context


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-neox partial"])
def test_a_wrong_base_never_reaches_an_answer(make: Make, family: str) -> None:
    engine = make(*EXACT[family], rope_theta=123456.0)
    assert engine.info().probe.status == "text_only"
    assert "rotary parameters" in engine.info().reason
    answer = engine.generate(prompt_plan(engine, (0, 1)), ANSWER)
    assert answer.report.status is InjectionStatus.TEXT


FAULTS: dict[str, Callable[[Any], Any]] = {
    "pairing": lambda spec: replace(spec, interleaved=not spec.interleaved),
    "scaling": lambda spec: replace(spec, frequencies=tuple(f / 2 for f in spec.frequencies)),
    "channels": lambda spec: replace(spec, rotary_dim=8, frequencies=spec.frequencies[:4]),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("family", ["llama llama3", "qwen3", "gemma3"])
def test_a_wrong_rotation_never_reaches_an_answer(
    make: Make, family: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = proving.layer_specs

    def wrong(*args: Any) -> list[Any]:
        return [spec and FAULTS[fault](spec) for spec in read(*args)]

    monkeypatch.setattr(proving, "layer_specs", wrong)
    engine = make(*EXACT[family])
    assert engine.info().probe.status == "text_only"
    answer = engine.generate(prompt_plan(engine, (0, 1)), ANSWER)
    assert answer.report.status is InjectionStatus.TEXT


def test_a_slow_pair_s_wrong_scaling_never_reaches_an_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the probe's positions it is off by less than rounding is; far behind, by a turn."""
    long = {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8192}}
    assert make("LlamaConfig", long).info().probe.status == "exact"
    read = proving.layer_specs

    def wrong(*args: Any) -> list[Any]:
        return [
            replace(spec, frequencies=(*spec.frequencies[:-1], spec.frequencies[-1] * 2))
            for spec in read(*args)
        ]

    monkeypatch.setattr(proving, "layer_specs", wrong)
    probe = make("LlamaConfig", long).info().probe
    assert probe.max_key_error < proving.TOLERANCE
    assert probe.status == "text_only"
    assert "rotary parameters" in probe.reason


def test_layers_in_the_wrong_order_never_reach_an_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 3's layers turn by two bases; what belongs to one must not be given to another."""
    read = proving.layer_specs
    monkeypatch.setattr(proving, "layer_specs", lambda *args: read(*args)[1:] + read(*args)[:1])
    assert make(*EXACT["gemma3"]).info().probe.status == "text_only"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_dtype(make: Make, dtype: str) -> None:
    engine = make(*EXACT["llama"], dtype=dtype)
    info = engine.info()
    assert info.can_inject, info.reason
    assert info.details["dtype"] == dtype
    engine.encode(encode_plan(engine))
    plan = prompt_plan(engine, (0, 1, 2, 3))
    injected = engine.generate(plan, ANSWER)
    text = engine.generate(PromptPlan(token_ids=plan.token_ids), ANSWER)
    assert injected.report.status is InjectionStatus.INJECTED
    assert injected.text == text.text
