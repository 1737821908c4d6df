"""Layer specs against what transformers' own models do, on tiny models with random weights.

A prompt that repeats one token has, in every layer, the same unrotated key at all positions. So the
key at position p must be the key at position 0 moved by p: this proves base, scaling, pairing,
partial rotation and layers without positions, all at once, without looking at any formula.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferscale_sdk.rope.rotate import delta_table, rotate
from inferscale_sdk.rope.spec import RopeSpec, layer_specs

N_TOKENS = 48
N_LAYERS = 4

TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALED = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
WINDOWED = {"sliding_window": 128, "sliding_window_pattern": 2}
OLD_NAMES: dict[str, Any] = {
    "vocab_size": 32,
    "n_embd": 64,
    "n_layer": N_LAYERS,
    "n_head": 4,
    "n_positions": 256,
    "rotary_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", TINY),
    **{f"llama-{kind}": ("llama", {**TINY, "rope_parameters": p}) for kind, p in SCALED.items()},
    "qwen2": ("qwen2", TINY),
    "qwen3": ("qwen3", {**TINY, "head_dim": 32}),
    "mistral": ("mistral", TINY),
    "gemma2": ("gemma2", {**TINY, "head_dim": 32, "sliding_window": 128}),
    "gemma3": ("gemma3_text", {**TINY, "head_dim": 32, **WINDOWED}),
    "cohere": ("cohere", TINY),
    "cohere2": ("cohere2", {**TINY, **WINDOWED}),
    "smollm3": ("smollm3", {**TINY, "no_rope_layer_interval": 2}),
    "exaone4": ("exaone4", {**TINY, **WINDOWED}),
    "olmo3": ("olmo3", {**TINY, "sliding_window": 128}),
    "glm4": ("glm4", {**TINY, "head_dim": 16}),
    "phi": ("phi", TINY),
    "phi3": ("phi3", TINY),
    "stablelm": ("stablelm", TINY),
    "gpt_neox": ("gpt_neox", {**TINY, "rotary_pct": 0.25}),
    "gptj": ("gptj", OLD_NAMES),
    "codegen": ("codegen", OLD_NAMES),
    "ernie4_5": ("ernie4_5", {**TINY, "head_dim": 16}),
    "helium": ("helium", {**TINY, "head_dim": 16}),
}


def keys_of_a_repeated_token(config: Any) -> list[torch.Tensor]:
    """Keys of each layer, ``[token, kv_head, head_dim]``."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        cache = model(torch.full((1, N_TOKENS), 5), use_cache=True).past_key_values
    return [layer.keys[0].transpose(0, 1) for layer in cache.layers]


def deviation(keys: torch.Tensor, spec: RopeSpec | None) -> float:
    """Largest error of moving the first key everywhere, relative to the largest key."""
    expected = keys[:1].expand_as(keys)
    if spec is not None:
        cos, sin = delta_table(spec, range(len(keys)))
        expected = rotate(
            expected, cos, sin, interleaved=spec.interleaved, rotary_dim=spec.rotary_dim
        )
    return float((keys - expected).abs().max() / keys.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_specs_describe_what_the_model_computes(name: str) -> None:
    model_type, settings = MODELS[name]
    config = AutoConfig.for_model(model_type, **settings)
    keys = keys_of_a_repeated_token(config)
    specs = layer_specs(config.to_dict(), N_LAYERS)
    for layer, (spec, of_layer) in enumerate(zip(specs, keys, strict=True)):
        assert deviation(of_layer, spec) < 2e-5, f"layer {layer} of {name}: {spec}"
        if spec is not None:  # the test can tell: the other pairing fails
            wrong = RopeSpec(spec.head_dim, spec.rotary_dim, not spec.interleaved, spec.frequencies)
            assert deviation(of_layer, wrong) > 1e-2


@pytest.mark.parametrize("name", ["cohere2", "smollm3", "exaone4"])
def test_models_with_layers_that_do_not_rotate(name: str) -> None:
    model_type, settings = MODELS[name]
    specs = layer_specs(AutoConfig.for_model(model_type, **settings).to_dict(), N_LAYERS)
    assert [spec is None for spec in specs] == [False, True, False, True]


def test_models_whose_layer_types_have_different_bases() -> None:
    model_type, settings = MODELS["gemma3"]
    specs = layer_specs(AutoConfig.for_model(model_type, **settings).to_dict(), N_LAYERS)
    assert len(set(specs)) == 2
