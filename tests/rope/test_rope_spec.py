"""Frequencies and layer specs against the oracle, transformers' formulas and whole tiny models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.rope.spec import RopeSpec, layer_specs
from inferscale_sdk.testing import rope_oracle

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn-gpt-oss": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
    },
    "yarn-given-factor": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("rotary_dim", [64, 128, 32])
def test_frequencies_equal_the_definition(name: str, rotary_dim: int) -> None:
    spec = RopeSpec.from_parameters(128, VARIANTS[name], rotary_dim=rotary_dim)
    expected = rope_oracle.frequencies(VARIANTS[name], rotary_dim)
    np.testing.assert_allclose(spec.inv_freq(), expected, rtol=1e-14)
    assert spec.inv_freq().dtype == np.float64
    assert spec.attention_factor == pytest.approx(rope_oracle.magnitude(VARIANTS[name]), rel=1e-14)


@pytest.mark.parametrize(
    ("name", "partial"),
    # transformers' Llama has no partial rotation of the default variant.
    [(name, part) for name in VARIANTS for part in (1.0, 0.5) if (name, part) != ("default", 0.5)],
)
def test_frequencies_equal_transformers(name: str, partial: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = dict(VARIANTS[name])
    if partial != 1.0:
        parameters["partial_rotary_factor"] = partial
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters=dict(parameters),
    )
    kind = parameters["rope_type"]
    if kind == "default":
        inverse, magnitude = LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        inverse, magnitude = ROPE_INIT_FUNCTIONS[kind](config)
    spec = RopeSpec.from_parameters(128, parameters)
    # Theirs are float32, some of them through several float32 operations.
    np.testing.assert_allclose(spec.inv_freq(), inverse.numpy(), rtol=1e-5)
    assert spec.attention_factor == pytest.approx(magnitude)


def test_constructors_equal_from_parameters() -> None:
    made = {
        "default": RopeSpec.default(128, 1e5),
        "linear": RopeSpec.linear(128, 1e4, factor=4.0),
        "llama3": RopeSpec.llama3(
            128,
            5e5,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position=8192,
        ),
        "yarn": RopeSpec.yarn(128, 1e6, factor=4.0, original_max_position=32768),
    }
    for name, spec in made.items():
        assert spec == RopeSpec.from_parameters(128, VARIANTS[name])
        assert hash(spec) == hash(RopeSpec.from_parameters(128, VARIANTS[name]))


def test_with_theta_changes_the_base_only() -> None:
    spec = RopeSpec.default(128, 1e4, rotary_dim=64, interleaved=True)
    assert spec.with_theta(1e6) == RopeSpec.default(128, 1e6, rotary_dim=64, interleaved=True)


LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8}


def test_both_spellings_of_a_configuration_give_the_same() -> None:
    scaling = {k: v for k, v in VARIANTS["llama3"].items() if k != "rope_theta"}
    old = layer_specs({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling}, 2)
    new = layer_specs({**LLAMA, "rope_parameters": VARIANTS["llama3"]}, 2)
    oldest = {**scaling, "type": scaling["rope_type"]}
    del oldest["rope_type"]
    assert old == new == layer_specs({**LLAMA, "rope_theta": 5e5, "rope_scaling": oldest}, 2)
    assert old[0] is not None
    assert old[0].variant == "llama3"
    assert layer_specs({"text_config": {**LLAMA, "rope_theta": 1e4}}, 1) == layer_specs(
        {**LLAMA, "rope_theta": 1e4, "rope_scaling": None}, 1
    )


def test_yarn_takes_the_original_length_from_the_model_when_scaling_has_none() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    config = {**LLAMA, "rope_theta": 1e6, "rope_scaling": scaling, "max_position_embeddings": 32768}
    assert layer_specs(config, 1) == [
        RopeSpec.yarn(64, 1e6, factor=4.0, original_max_position=32768)
    ]


def test_gemma_3_has_two_bases_in_either_spelling() -> None:
    base = {"model_type": "gemma3_text", "head_dim": 256, "hidden_size": 640}
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {
        **base,
        "rope_theta": 1e6,
        "rope_scaling": scaling,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
    }
    new = {
        **base,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    local, full = RopeSpec.default(256, 1e4), RopeSpec.linear(256, 1e6, factor=8.0)
    assert layer_specs(old, 12) == layer_specs(new, 12) == ([local] * 5 + [full]) * 2


def test_layers_without_positions_are_none() -> None:
    config = {**LLAMA, "rope_theta": 1e4}
    spec = RopeSpec.default(64, 1e4)
    assert layer_specs({**config, "no_rope_layers": [1, 0, 1]}, 3) == [spec, None, spec]
    assert layer_specs({**config, "no_rope_layer_interval": 2}, 4) == [spec, None] * 2
    cohere = {
        **config,
        "model_type": "cohere2",
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    assert layer_specs(cohere, 2) == [RopeSpec.default(64, 1e4, interleaved=True), None]


def test_the_engine_may_pair_otherwise_than_transformers() -> None:
    config = {**LLAMA, "model_type": "llama4_text", "rope_theta": 1e4}
    assert layer_specs(config, 1) == [RopeSpec.default(64, 1e4, interleaved=True)]
    assert layer_specs(config, 1, interleaved=False) == [RopeSpec.default(64, 1e4)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic NTK"),
        ({"rope_scaling": {"type": "su", "long_factor": [1.0]}}, "LongRoPE"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "LongRoPE"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor=None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor=-1"),
        ({"rope_theta": None}, "no rotary base"),
        ({"alibi": True}, "alibi"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"no_rope_layers": [1]}, "1 entries for 2 layers"),
        ({"partial_rotary_factor": 0.7}, "rotary_dim=44"),
        ({"num_attention_heads": None}, "head_dim"),
        ({"model_type": "cohere2", "sliding_window": 8}, "sliding-window layers only"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "full_attention"),
    ],
)
def test_what_is_no_rotation_is_refused_with_the_reason(
    change: dict[str, Any], reason: str
) -> None:
    config = {**LLAMA, "rope_theta": 1e4, **change}
    if reason == "rotary_dim=44":
        config["head_dim"], reason = 65, "rotary_dim=45"  # 65 · 0.7, an odd number of channels
    with pytest.raises(IncompatibleModel, match=reason):
        layer_specs(config, 2)


@pytest.mark.parametrize("rotary_dim", [0, 3, 66])
def test_a_spec_checks_itself(rotary_dim: int) -> None:
    with pytest.raises(IncompatibleModel, match="rotary_dim"):
        RopeSpec(64, rotary_dim, False, (1.0,) * (rotary_dim // 2))
    with pytest.raises(IncompatibleModel, match="frequencies"):
        RopeSpec(64, 8, False, (1.0, float("nan"), 1.0, 1.0))
