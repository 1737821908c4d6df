"""How one layer's keys are rotated, and reading that from a model's configuration. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.rope import families, frequencies

__all__ = ["RopeSpec", "layer_specs"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The rotation of one layer's keys: which channels pair up, and how fast each pair turns.

    Args:
        head_dim: Channels per head.
        rotary_dim: Leading channels that rotate; even.
        interleaved: Pairs are channels (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.
        frequencies: Radians per position of each pair, ``rotary_dim/2`` of them.
        variant: Name of the formula that gave the frequencies.
        attention_factor: By what the model multiplies rotated queries and keys (YaRN). It is part
            of the stored keys and plays no part in moving them.

    Raises:
        IncompatibleModel: The numbers do not describe a rotation.
    """

    head_dim: int
    rotary_dim: int
    interleaved: bool
    frequencies: tuple[float, ...] = field(repr=False)
    variant: str = "default"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise IncompatibleModel(
                f"rotary_dim={self.rotary_dim} must be even, positive and at most "
                f"head_dim={self.head_dim}; this model is served as text"
            )
        if len(self.frequencies) != self.rotary_dim // 2 or not np.all(
            np.isfinite(self.frequencies)
        ):
            raise IncompatibleModel(
                f"{len(self.frequencies)} frequencies given, rotary_dim={self.rotary_dim} needs "
                f"{self.rotary_dim // 2} finite ones; this model is served as text"
            )

    def inv_freq(self) -> NDArray[np.float64]:
        """The frequencies ``[rotary_dim/2]`` as float64."""
        return np.array(self.frequencies, dtype=np.float64)

    def __str__(self) -> str:
        pairs = ", interleaved" if self.interleaved else ""
        return f"{self.variant}, {self.rotary_dim} of {self.head_dim} channels{pairs}"

    def with_theta(self, theta: float) -> RopeSpec:
        """The same channels turned by plain rotary positions of another base, without scaling."""
        return RopeSpec.default(
            self.head_dim, theta, rotary_dim=self.rotary_dim, interleaved=self.interleaved
        )

    @classmethod
    def default(
        cls,
        head_dim: int,
        theta: float,
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
    ) -> RopeSpec:
        """Plain rotary positions with base ``theta``; all channels rotate unless told otherwise."""
        return cls.from_parameters(
            head_dim, {"rope_theta": theta}, rotary_dim=rotary_dim, interleaved=interleaved
        )

    @classmethod
    def linear(
        cls,
        head_dim: int,
        theta: float,
        *,
        factor: float,
        rotary_dim: int | None = None,
        interleaved: bool = False,
    ) -> RopeSpec:
        """Positions divided by ``factor``."""
        return cls.from_parameters(
            head_dim,
            {"rope_type": "linear", "rope_theta": theta, "factor": factor},
            rotary_dim=rotary_dim,
            interleaved=interleaved,
        )

    @classmethod
    def llama3(
        cls,
        head_dim: int,
        theta: float,
        *,
        factor: float,
        low_freq_factor: float,
        high_freq_factor: float,
        original_max_position: int,
        rotary_dim: int | None = None,
        interleaved: bool = False,
    ) -> RopeSpec:
        """Llama 3.1's frequency-dependent scaling."""
        parameters = {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position,
        }
        return cls.from_parameters(
            head_dim, parameters, rotary_dim=rotary_dim, interleaved=interleaved
        )

    @classmethod
    def yarn(
        cls,
        head_dim: int,
        theta: float,
        *,
        factor: float,
        original_max_position: int,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        **options: Any,
    ) -> RopeSpec:
        """YaRN (arXiv 2309.00071).

        ``options`` are ``beta_fast``, ``beta_slow``, ``truncate``, ``attention_factor``, ``mscale``
        and ``mscale_all_dim``, with their published defaults.
        """
        parameters = {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original_max_position,
            **options,
        }
        return cls.from_parameters(
            head_dim, parameters, rotary_dim=rotary_dim, interleaved=interleaved
        )

    @classmethod
    def from_parameters(
        cls,
        head_dim: int,
        parameters: Mapping[str, Any],
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
    ) -> RopeSpec:
        """From one dictionary in the form of ``rope_parameters`` of transformers 5.

        Args:
            head_dim: Channels per head.
            parameters: ``rope_theta``, ``rope_type`` and what that type needs.
            rotary_dim: Channels that rotate, if ``parameters`` has no ``partial_rotary_factor``.
            interleaved: The pairing.

        Raises:
            IncompatibleModel: A parameter is missing, or the variant is not a pure rotation.
        """
        if rotary_dim is None:
            rotary_dim = int(head_dim * (parameters.get("partial_rotary_factor") or 1.0))
        kind = families.rope_type(parameters)
        theta = _number(parameters, "rope_theta", kind)
        magnitude = 1.0
        if kind == "default":
            inverse = frequencies.default(theta, rotary_dim)
        elif kind == "linear":
            factor = _number(parameters, "factor", kind)
            inverse = frequencies.linear(theta, rotary_dim, factor=factor)
        elif kind == "llama3":
            inverse = frequencies.llama3(
                theta,
                rotary_dim,
                factor=_number(parameters, "factor", kind),
                low_freq_factor=_number(parameters, "low_freq_factor", kind),
                high_freq_factor=_number(parameters, "high_freq_factor", kind),
                original_max_position=_original_length(parameters, kind),
            )
        elif kind == "yarn":
            inverse, magnitude = _yarn(parameters, theta, rotary_dim)
        else:
            raise IncompatibleModel(families.refusal(kind))
        return cls(
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            frequencies=tuple(inverse.tolist()),
            variant=kind,
            attention_factor=magnitude,
        )


def layer_specs(
    config: Mapping[str, Any], n_layers: int, *, interleaved: bool | None = None
) -> list[RopeSpec | None]:
    """The rotation of every layer of a model.

    Args:
        config: The model's Hugging Face configuration as a mapping, best with all defaults filled
            in (``config.to_dict()``). Both spellings are read: ``rope_theta`` with
            ``rope_scaling``, and ``rope_parameters``, which may differ by layer type.
        n_layers: Layers of the whole model.
        interleaved: How the engine pairs channels, if that is known; by default as transformers
            does for this model type. An engine that reorders weights when it loads them pairs
            otherwise (vLLM does so for Llama 4).

    Returns:
        One entry per layer; ``None`` for a layer whose keys have no rotary position and stay as
        they are wherever the segment goes.

    Raises:
        IncompatibleModel: Moving this model's keys is not a rotation, or the configuration does
            not say how they rotate. The message gives the reason.
    """
    model = families.text_config(config)
    families.refuse_unsuitable(model)
    head_dim = families.head_dim(model)
    if interleaved is None:
        interleaved = families.is_interleaved(model)
    by_type: dict[str, RopeSpec] = {}
    specs: list[RopeSpec | None] = []
    for layer_type, has_rope in families.layers(model, n_layers):
        if not has_rope:
            specs.append(None)
            continue
        if layer_type not in by_type:
            parameters = families.parameters_of(model, layer_type)
            by_type[layer_type] = RopeSpec.from_parameters(
                head_dim,
                parameters,
                rotary_dim=families.rotary_dim(model, head_dim, parameters),
                interleaved=interleaved,
            )
        specs.append(by_type[layer_type])
    return specs


def _yarn(
    parameters: Mapping[str, Any], theta: float, rotary_dim: int
) -> tuple[NDArray[np.float64], float]:
    factor = _number(parameters, "factor", "yarn")
    truncate = parameters.get("truncate")
    inverse = frequencies.yarn(
        theta,
        rotary_dim,
        factor=factor,
        original_max_position=_original_length(parameters, "yarn"),
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        truncate=True if truncate is None else bool(truncate),
    )
    magnitude = frequencies.yarn_magnitude(
        factor,
        attention_factor=parameters.get("attention_factor"),
        mscale=parameters.get("mscale"),
        mscale_all_dim=parameters.get("mscale_all_dim"),
    )
    return inverse, magnitude


def _number(parameters: Mapping[str, Any], name: str, kind: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise IncompatibleModel(
            f"{name}={value!r} of the model's {kind!r} rotary positions is not a positive number; "
            "give the full configuration (config.to_dict()), or serve this model as text"
        )
    return float(value)


def _original_length(parameters: Mapping[str, Any], kind: str) -> int:
    return int(_number(parameters, "original_max_position_embeddings", kind))
