"""The embedded engine passes the suite that comes with the contract, on the real small model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferscale_sdk import TransformersEngine
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.testing.engine_suite import EngineSuite

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def embedded(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TransformersEngine]:
    """SmolLM2 in this process."""
    with TransformersEngine(
        model_path, disk_path=tmp_path_factory.mktemp("embedded"), max_model_len=4096
    ) as engine:
        assert isinstance(engine, TransformersEngine)
        yield engine


@pytest.mark.engine
class TestTransformersEngine(EngineSuite):
    @pytest.fixture
    def engine(self, embedded: TransformersEngine) -> Engine:
        return embedded
