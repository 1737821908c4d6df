"""Rotary positions by definition: slow, in float64, one pair of channels at a time.

The reference against which :mod:`inferscale_sdk.rope` is tested. It shares no code with it: the
frequencies are written down case by case as the papers have them, and a key is rotated by
multiplying every pair of its channels with a 2×2 rotation matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["frequencies", "magnitude", "rotate_at"]


def frequencies(parameters: Mapping[str, Any], rotary_dim: int) -> list[float]:
    """Radians per position of each pair.

    Args:
        parameters: ``rope_type``, ``rope_theta`` and what the type needs, as in transformers'
            ``rope_parameters``. Types: default, linear, llama3, yarn.
        rotary_dim: Channels that rotate.

    Returns:
        ``rotary_dim/2`` numbers.

    Raises:
        ValueError: The type is another one.
    """
    return [_frequency(parameters, pair, rotary_dim) for pair in range(rotary_dim // 2)]


def magnitude(parameters: Mapping[str, Any]) -> float:
    """By what rotated keys are multiplied: 1 but for yarn (arXiv 2309.00071, section 3.4)."""
    if parameters.get("rope_type") != "yarn":
        return 1.0
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    factor: float = parameters["factor"]
    if factor <= 1:
        return 1.0
    above: float | None = parameters.get("mscale")
    below: float | None = parameters.get("mscale_all_dim")
    if above and below:
        return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1


def rotate_at(
    keys: NDArray[Any],
    positions: Sequence[int],
    parameters: Mapping[str, Any],
    *,
    rotary_dim: int,
    interleaved: bool,
) -> NDArray[np.float64]:
    """Rotate keys that have no position yet to absolute positions.

    Args:
        keys: ``[token, kv_head, head_dim]``, unrotated.
        positions: One per token.
        parameters: See :func:`frequencies`.
        rotary_dim: Leading channels that rotate; the others are copied.
        interleaved: Pairs are channels (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.

    Returns:
        float64 ``[token, kv_head, head_dim]``, times the variant's magnitude where rotated.
    """
    out = np.array(keys, dtype=np.float64)
    scale = magnitude(parameters)
    for pair, frequency in enumerate(frequencies(parameters, rotary_dim)):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary_dim // 2)
        for token, position in enumerate(positions):
            angle = position * frequency
            matrix = scale * np.array(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            )
            for head in range(out.shape[1]):
                out[token, head, [first, second]] = matrix @ out[token, head, [first, second]]
    return out


def _frequency(parameters: Mapping[str, Any], pair: int, rotary_dim: int) -> float:
    kind = parameters.get("rope_type", "default")
    plain: float = float(parameters["rope_theta"]) ** (-2 * pair / rotary_dim)
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / float(parameters["factor"])
    if kind == "llama3":
        return _llama3(parameters, plain)
    if kind == "yarn":
        return _yarn(parameters, plain, pair, rotary_dim)
    raise ValueError(f"rope_type {kind!r} has no definition here")


def _llama3(parameters: Mapping[str, Any], plain: float) -> float:
    factor: float = parameters["factor"]
    original: int = parameters["original_max_position_embeddings"]
    low: float = parameters["low_freq_factor"]
    high: float = parameters["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    if wavelength < original / high:
        return plain
    if wavelength > original / low:
        return plain / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(parameters: Mapping[str, Any], plain: float, pair: int, rotary_dim: int) -> float:
    theta: float = parameters["rope_theta"]
    original: int = parameters["original_max_position_embeddings"]

    def pair_with(turns: float) -> float:
        # The pair i that makes so many turns: original / (2π theta^(2i/d)) = turns.
        return rotary_dim / 2 * math.log(original / (2 * math.pi * turns)) / math.log(theta)

    start = pair_with(parameters.get("beta_fast") or 32)
    end = pair_with(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, rotary_dim - 1)
    if end == start:
        end += 0.001
    ramp = min(1.0, max(0.0, (pair - start) / (end - start)))
    factor: float = parameters["factor"]
    return (1 - ramp) * plain + ramp * plain / factor
