"""A client of a fake server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Plans that several modules share are in ``transformers_scene``.
sys.path.insert(0, str(Path(__file__).parent))

from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.testing.fake_server import FakeServer
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

if TYPE_CHECKING:
    from inferscale_sdk.engines.transformers import TransformersEngine

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 258,
}
"""Sizes of random models: three layers, and a vocabulary that holds the fake tokenizer's."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[..., VLLMEngine]]:
    """Connects to a fake server; closes what it opened."""
    opened: list[VLLMEngine] = []

    def make(server: FakeServer, **options: Any) -> VLLMEngine:
        options = {"tokenizer": FakeTokenizer(), "timeout_seconds": 5.0, **options}
        opened.append(VLLMEngine(server.base_url, **options))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture
def client(server: FakeServer, connect: Callable[..., VLLMEngine]) -> VLLMEngine:
    return connect(server)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Callable[..., Path]:
    """Saves a random model of a transformers configuration; returns its folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def save(config_class: str = "LlamaConfig", **changes: Any) -> Path:
        folder = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        config = getattr(transformers, config_class)(**{**TINY, **changes})
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def folder(tiny_model: Callable[..., Path]) -> Path:
    """The folder of a random model."""
    return tiny_model()


@pytest.fixture
def embed() -> Iterator[Callable[..., TransformersEngine]]:
    """Builds embedded engines on a folder, on the CPU and in memory; closes what it built."""
    from inferscale_sdk.engines.transformers import TransformersEngine

    opened: list[TransformersEngine] = []

    def build(folder: Path, **options: Any) -> TransformersEngine:
        options = {"device": "cpu", "persist": False, "tokenizer": FakeTokenizer(), **options}
        opened.append(TransformersEngine(folder, **options))
        return opened[-1]

    yield build
    for engine in opened:
        engine.close()


@pytest.fixture
def tell(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, object], None]:
    """Puts a measured figure into the test's record and onto the terminal."""

    def say(what: str, figure: object) -> None:
        request.node.user_properties.append((what, figure))
        with capsys.disabled():
            sys.stdout.write(f"\n{what}: {figure}")

    return say
