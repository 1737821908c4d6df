"""Which model this server runs, worked out the same way in scheduler and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferscale_sdk._version import __version__
from inferscale_sdk.injection.probe import probe_token
from inferscale_sdk.kv.fingerprint import model_fingerprint, model_folder, weights_digest

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from inferscale_sdk.vllm_connector.config import ConnectorConfig

__all__ = ["ModelIdentity", "identify"]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Names and numbers of the served model."""

    model: str
    fingerprint: str
    dtype: str
    block_size: int
    max_model_len: int
    hf_config: Mapping[str, Any]
    probe_token_id: int
    sdk_version: str = __version__


def identify(vllm_config: VllmConfig, config: ConnectorConfig) -> ModelIdentity:
    """Read the identity off vLLM's configuration and the model's files."""
    model_config = vllm_config.model_config
    hf_config = model_config.hf_text_config.to_dict()
    dtype = str(model_config.dtype).removeprefix("torch.")
    cache = config.disk_path / "fingerprints.json" if config.disk_path else None
    weights = weights_digest(
        model_folder(model_config.model, model_config.revision), cache_file=cache
    )
    return ModelIdentity(
        model=str(model_config.served_model_name or model_config.model),
        fingerprint=model_fingerprint(
            hf_config,
            weights=weights,
            dtype=dtype + _quantized_on_loading(model_config),
            cache_dtype=str(vllm_config.cache_config.cache_dtype),
        ),
        dtype=dtype,
        block_size=vllm_config.cache_config.block_size,
        max_model_len=model_config.max_model_len,
        hf_config=hf_config,
        probe_token_id=probe_token(model_config.get_vocab_size()),
    )


def _quantized_on_loading(model_config: ModelConfig) -> str:
    """What the engine does to the weights beyond what their files and configuration say."""
    method = model_config.quantization
    stored = getattr(model_config.hf_config, "quantization_config", None) is not None
    return "" if method is None or stored else f"+{method}"
