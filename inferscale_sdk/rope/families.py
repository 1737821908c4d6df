"""What the configurations of model families say about rotation, and what they leave unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferscale_sdk.errors import IncompatibleModel

__all__ = [
    "head_dim",
    "is_interleaved",
    "layers",
    "parameters_of",
    "refusal",
    "refuse_unsuitable",
    "rope_type",
    "rotary_dim",
    "text_config",
]

Config = Mapping[str, Any]

# Pairs are channels (2i, 2i+1) in transformers. Configurations do not say so, the modelling code
# does.
_INTERLEAVED = frozenset(
    {
        "codegen",
        "cohere",
        "cohere2",
        "ernie4_5",
        "ernie4_5_moe",
        "glm",
        "glm4",
        "gptj",
        "helium",
        "llama4",
        "llama4_text",
    }
)
# Only their sliding-window layers rotate.
_ROPE_ON_SLIDING_ONLY = frozenset({"cohere2", "exaone4"})
# The base is written in their code, not in their configuration.
_FIXED_THETA = {"codegen": 10000.0, "gptj": 10000.0}

_ATTENTION_TYPES = frozenset(
    {"attention", "full_attention", "sliding_attention", "chunked_attention"}
)

_LENGTH_DEPENDENT = {
    "dynamic": "its frequencies change with the length of each request (dynamic NTK)",
    "longrope": "its frequencies change when a request grows past the original length (LongRoPE)",
    "su": "its frequencies change when a request grows past the original length (LongRoPE)",
}
_ALIASES = {
    # Text tokens have the same position on all three axes, which is plain rotation.
    "mrope": "default",
    None: "default",
}


def rope_type(parameters: Config) -> str:
    """The variant's name, with aliases resolved."""
    name = parameters.get("rope_type", parameters.get("type"))
    return _ALIASES.get(name, str(name))


def refusal(kind: str) -> str:
    """Why keys rotated by variant ``kind`` cannot be moved."""
    reason = _LENGTH_DEPENDENT.get(kind, "this release does not know that variant")
    return (
        f"rotary variant {kind!r} cannot be injected: {reason}, so a stored key cannot be moved "
        "by a rotation; this model is served as text"
    )


def text_config(config: Config) -> Config:
    """The part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def refuse_unsuitable(config: Config) -> None:
    """Refuse models whose keys depend on positions otherwise than by rotation.

    Raises:
        IncompatibleModel: With the reason.
    """
    kind = config.get("model_type")
    if config.get("alibi") or config.get("position_embedding_type") in ("alibi", "absolute"):
        raise IncompatibleModel(
            f"model type {kind!r} has no rotary positions (alibi={config.get('alibi')!r}, "
            f"position_embedding_type={config.get('position_embedding_type')!r}); "
            "it is served as text"
        )
    if config.get("kv_lora_rank"):
        raise IncompatibleModel(
            f"model type {kind!r} keeps a latent of rank {config['kv_lora_rank']} instead of keys "
            "and values (MLA), which segments cannot hold; it is served as text"
        )


def head_dim(config: Config) -> int:
    """Channels per head.

    Raises:
        IncompatibleModel: The configuration gives neither it nor what it follows from.
    """
    given = config.get("head_dim")
    if given:
        return int(given)
    width = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    if not width or not heads:
        raise IncompatibleModel(
            "the model's configuration gives neither head_dim nor hidden_size and "
            "num_attention_heads; give the full configuration (config.to_dict())"
        )
    return int(width) // int(heads)


def is_interleaved(config: Config) -> bool:
    """Whether pairs are neighbouring channels."""
    return config.get("model_type") in _INTERLEAVED


def rotary_dim(config: Config, head_dim: int, parameters: Config) -> int:
    """How many leading channels rotate."""
    given = config.get("rotary_dim")
    if given:
        return int(given)
    share = next(
        (
            value
            for value in (
                parameters.get("partial_rotary_factor"),
                config.get("partial_rotary_factor"),
                config.get("rotary_pct"),
                config.get("rope_pct"),
            )
            if value is not None
        ),
        1.0,
    )
    return int(head_dim * share)


def layers(config: Config, n_layers: int) -> list[tuple[str, bool]]:
    """Type of each layer, and whether its keys rotate.

    Raises:
        IncompatibleModel: A list in the configuration has another length, or a layer keeps
            something else than keys and values.
    """
    types = _layer_types(config, n_layers)
    rotating = config.get("no_rope_layers")  # despite its name: 1 where there is rotation
    interval = config.get("no_rope_layer_interval")
    if rotating:
        _check_length("no_rope_layers", rotating, n_layers)
        has_rope = [bool(flag) for flag in rotating]
    elif interval:
        has_rope = [(index + 1) % int(interval) != 0 for index in range(n_layers)]
    elif config.get("model_type") in _ROPE_ON_SLIDING_ONLY and config.get("sliding_window"):
        if "sliding_attention" not in types:
            raise IncompatibleModel(
                f"model type {config['model_type']!r} rotates its sliding-window layers only, and "
                "the configuration does not name them; give the full one (config.to_dict())"
            )
        has_rope = [kind == "sliding_attention" for kind in types]
    else:
        has_rope = [True] * n_layers
    return list(zip(types, has_rope, strict=True))


def windows(config: Config, n_layers: int) -> list[int | None]:
    """How many tokens each layer looks back, ``None`` for all; as the configuration has it."""
    size = config.get("sliding_window")
    if not size or config.get("use_sliding_window") is False:
        return [None] * n_layers
    types = _layer_types(config, n_layers)
    named = bool(config.get("layer_types") or config.get("sliding_window_pattern"))
    return [int(size) if not named or kind != "full_attention" else None for kind in types]


def _layer_types(config: Config, n_layers: int) -> list[str]:
    types = config.get("layer_types")
    if types:
        _check_length("layer_types", types, n_layers)
        other = sorted(set(types) - _ATTENTION_TYPES)
        if other:
            raise IncompatibleModel(
                f"layers of type {', '.join(other)} keep a state instead of keys and values; "
                "this model is served as text"
            )
        return list(types)
    period = config.get("sliding_window_pattern")
    if isinstance(period, int) and period > 0:
        return [
            "sliding_attention" if (index + 1) % period else "full_attention"
            for index in range(n_layers)
        ]
    return ["full_attention"] * n_layers


def _check_length(name: str, values: Any, n_layers: int) -> None:
    if len(values) != n_layers:
        raise IncompatibleModel(
            f"{name} has {len(values)} entries for {n_layers} layers; "
            "give the full configuration (config.to_dict())"
        )


def parameters_of(config: Config, layer_type: str) -> dict[str, Any]:
    """The rotary parameters of one layer type, as ``rope_parameters`` of transformers 5 has them.

    Raises:
        IncompatibleModel: The configuration names no rotary base.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    local_theta = config.get("rope_local_base_freq")
    if isinstance(given.get(layer_type), Mapping):
        parameters = dict(given[layer_type])
    elif any(isinstance(value, Mapping) for value in given.values()):
        raise IncompatibleModel(
            f"rope_parameters name {sorted(given)} but not layer type {layer_type!r}; "
            "give the full configuration (config.to_dict())"
        )
    elif local_theta and layer_type == "sliding_attention":
        parameters = {"rope_theta": local_theta}  # Gemma 3 scales its global layers only
    else:
        parameters = dict(given)
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = _theta(config)
    if config.get("original_max_position_embeddings"):
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    elif parameters.get("original_max_position_embeddings") is None:
        parameters["original_max_position_embeddings"] = config.get("max_position_embeddings")
    return parameters


def _theta(config: Config) -> float:
    kind = config.get("model_type")
    theta = config.get("rope_theta", config.get("rotary_emb_base", _FIXED_THETA.get(str(kind))))
    if theta is None:
        raise IncompatibleModel(
            f"the configuration of model type {kind!r} names no rotary base (rope_theta, "
            "rope_parameters, rotary_emb_base): it has no rotary positions, or give the full "
            "configuration (config.to_dict()); it is served as text"
        )
    return float(theta)
