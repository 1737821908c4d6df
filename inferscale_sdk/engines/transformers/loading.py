"""Loading a model, and saying which one it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.hardware import cpu_dtype
from inferscale_sdk.kv.fingerprint import model_fingerprint, model_folder, weights_digest
from inferscale_sdk.kv.layout import dtype_name

__all__ = ["LoadedModel", "load_model", "pick_device", "pick_dtype"]

_UNKNOWN_CONTEXT = 2048


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Args:
        module: The transformers model, in evaluation mode.
        config: Its text configuration as a mapping, defaults filled in.
        fingerprint: The same that a vLLM server computes for the same folder and dtype.
        max_model_len: Context length in tokens.
        eos_ids: Tokens that end an answer.
        device: Where it runs.
        dtype: What it computes in.
    """

    module: Any
    config: Mapping[str, Any]
    fingerprint: str
    max_model_len: int
    eos_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype

    @property
    def n_layers(self) -> int:
        """Layers of the model, whatever they are made of."""
        return int(self.module.config.get_text_config().num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.module.config.get_text_config().vocab_size)

    @property
    def forward_options(self) -> frozenset[str]:
        """Names of the arguments that the model's ``forward`` takes."""
        return frozenset(inspect.signature(self.module.forward).parameters)


def pick_device(given: str | torch.device | None) -> torch.device:
    """The device asked for, or the best there is.

    Raises:
        ConfigurationError: There is no such device here.
    """
    if given is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(given)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigurationError(
            f"device={str(given)!r} cannot be used: {error}; leave it out to take the best there is"
        ) from None
    return device


def pick_dtype(given: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    """The dtype asked for, ``"auto"`` for the one the weights are stored in.

    A CPU without fast 16-bit arithmetic gets float32 unless it is told otherwise.

    Raises:
        ConfigurationError: It is not a floating-point dtype.
    """
    if given is None or given == "auto":
        given = cpu_dtype() if device.type == "cpu" else "auto"
    if given == "auto":
        return given
    dtype = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigurationError(
            f"dtype={given!r} is not a floating-point dtype; use 'bfloat16', 'float16', 'float32' "
            "or leave it out"
        )
    return dtype


def load_model(
    source: str,
    *,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    max_model_len: int | None,
    digest_cache: Path | None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model from a folder, or by name from the hub's cache or the hub.

    Args:
        source: Folder or name.
        device: Where it shall run, see :func:`pick_device`.
        dtype: What it shall compute in, see :func:`pick_dtype`.
        max_model_len: Context length to keep to, ``None`` for the model's own.
        digest_cache: Where digests of weight files are remembered.
        trust_remote_code: Run code that comes with the model.

    Raises:
        ConfigurationError: There is no such model, device or dtype, or ``max_model_len`` is not to
            be had.
    """
    target = pick_device(device)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            source, dtype=pick_dtype(dtype, target), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no model can be loaded from {source!r}: {error}") from error
    module = module.to(target).eval()
    text_config = module.config.get_text_config()
    config = text_config.to_dict()
    own_dtype: torch.dtype = module.dtype
    return LoadedModel(
        module=module,
        config=config,
        fingerprint=model_fingerprint(
            config,
            weights=weights_digest(model_folder(source), cache_file=digest_cache),
            dtype=dtype_name(own_dtype),
        ),
        max_model_len=_context(text_config, max_model_len),
        eos_ids=_eos_ids(module),
        device=target,
        dtype=own_dtype,
    )


def _context(text_config: Any, wanted: int | None) -> int:
    own = getattr(text_config, "max_position_embeddings", None)
    if wanted is None:
        return int(own or _UNKNOWN_CONTEXT)
    if wanted < 1 or (own is not None and wanted > own):
        raise ConfigurationError(
            f"max_model_len={wanted} must be between 1 and the model's own {own or 'length'}"
        )
    return wanted


def _eos_ids(module: Any) -> frozenset[int]:
    given = getattr(module.generation_config, "eos_token_id", None)
    if given is None:
        given = module.config.get_text_config().eos_token_id
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, list | tuple) else [given])
