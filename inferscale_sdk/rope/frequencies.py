"""Inverse frequencies of the rotary variants that are pure rotations, in float64.

Each function gives ``[rotary_dim/2]`` radians per position. Dividing positions by a factor (linear
scaling) or bending the frequencies (llama3, yarn) changes how fast each pair of channels turns, not
that it turns: R(a + b) = R(a)·R(b) holds for any fixed set of frequencies.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["default", "linear", "llama3", "yarn", "yarn_magnitude"]

Frequencies = NDArray[np.float64]


def default(theta: float, rotary_dim: int) -> Frequencies:
    """``theta ** (-2i / rotary_dim)``."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    inverse: Frequencies = 1.0 / np.power(np.float64(theta), exponents)
    return inverse


def linear(theta: float, rotary_dim: int, *, factor: float) -> Frequencies:
    """Positions divided by ``factor``."""
    return default(theta, rotary_dim) / factor


def llama3(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
) -> Frequencies:
    """Llama 3.1: slow pairs divided by ``factor``, fast ones kept, a ramp between."""
    inverse = default(theta, rotary_dim)
    turns = original_max_position * inverse / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    blended: Frequencies = inverse * (kept + (1.0 - kept) / factor)
    return blended


def yarn(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    original_max_position: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Frequencies:
    """YaRN (arXiv 2309.00071): interpolated below ``beta_slow`` turns, kept above ``beta_fast``."""

    def pair_that_turns(n_turns: float) -> float:
        return (
            rotary_dim
            * math.log(original_max_position / (n_turns * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001  # the published code's way around a ramp of width 0
    pairs = np.arange(rotary_dim // 2, dtype=np.float64)
    interpolated = np.clip((pairs - low) / (high - low), 0.0, 1.0)
    inverse = default(theta, rotary_dim)
    blended: Frequencies = inverse * (interpolated / factor + (1.0 - interpolated))
    return blended


def yarn_magnitude(
    factor: float,
    *,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> float:
    """The constant by which YaRN multiplies cosine and sine, and so queries and keys."""

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if attention_factor is not None:
        return float(attention_factor)
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
