"""What the served model is told apart by."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import connector_harness  # noqa: F401 - imports vllm, whose own warnings it switches off
import pytest

from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.identity import identify


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def fingerprint(
    model: Path,
    *,
    quantization: str | None = None,
    stored_as: dict[str, Any] | None = None,
    cache_dtype: str = "auto",
) -> str:
    hf_config = SimpleNamespace(quantization_config=stored_as)
    hf_config.to_dict = lambda: {"model_type": "llama", "quantization_config": stored_as}
    vllm_config: Any = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model), revision=None, served_model_name=None, dtype="torch.bfloat16",
            max_model_len=64, quantization=quantization, get_vocab_size=lambda: 100,
            hf_config=hf_config, hf_text_config=hf_config,
        ),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, block_size=16),
    )  # fmt: skip
    return identify(vllm_config, ConnectorConfig()).fingerprint


def test_weights_quantized_on_loading_are_another_model(model: Path) -> None:
    plain = fingerprint(model)
    assert fingerprint(model) == plain
    told_apart = {
        plain,
        fingerprint(model, quantization="fp8"),
        fingerprint(model, quantization="bitsandbytes"),
        fingerprint(model, cache_dtype="fp8"),
    }
    assert len(told_apart) == 4


def test_the_kernel_of_weights_that_are_stored_quantized_is_no_difference(model: Path) -> None:
    stored = {"quant_method": "awq", "bits": 4}
    assert fingerprint(model, quantization="awq", stored_as=stored) == fingerprint(
        model, quantization="awq_marlin", stored_as=stored
    )
