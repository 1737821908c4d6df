"""What a request may ask of sampling."""

from __future__ import annotations

from dataclasses import dataclass

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import ConfigurationError

__all__ = ["Options", "read_options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What :class:`Sampling` and its ``extra`` say, checked.

    Args:
        top_k: Candidates at most, 0 for all.
        ignore_eos: Go on past the end of the answer.
        stop_token_ids: Further tokens that end the answer.
    """

    top_k: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()


_KNOWN = ("ignore_eos", "stop_token_ids", "top_k")


def read_options(sampling: Sampling) -> Options:
    """Check what was asked for.

    Raises:
        ConfigurationError: A value is out of range, or ``extra`` has a field that this engine does
            not know.
    """
    if sampling.max_tokens < 1:
        raise ConfigurationError(f"max_tokens={sampling.max_tokens} must be at least 1")
    if not sampling.temperature >= 0:
        raise ConfigurationError(f"temperature={sampling.temperature} must be 0 or more")
    if not 0 < sampling.top_p <= 1:
        raise ConfigurationError(f"top_p={sampling.top_p} must be above 0 and at most 1")
    unknown = sorted(set(sampling.extra) - set(_KNOWN))
    if unknown:
        raise ConfigurationError(
            f"Sampling.extra has {unknown}, which TransformersEngine cannot do; it knows "
            f"{list(_KNOWN)}: leave the others out or use VLLMEngine"
        )
    # vLLM's spelling of "all" is -1.
    top_k = max(0, int(sampling.extra.get("top_k") or 0))
    return Options(
        top_k=top_k,
        ignore_eos=bool(sampling.extra.get("ignore_eos", False)),
        stop_token_ids=frozenset(sampling.extra.get("stop_token_ids") or ()),
    )
