"""One vLLM engine in this process for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("vllm", reason="runs in the server's environment")
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from connector_harness import Harness

THEIRS = ("vllm", "torch", "transformers", "importlib", "sympy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.connector)
            for package in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(rf"ignore:::{package}(\..*)?"))


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    from connector_harness import start_harness

    from inferscale_sdk.models import bundled_model_path

    harness = start_harness(bundled_model_path(), tmp_path_factory.mktemp("kv"))
    assert harness.ping is not None
    assert harness.ping.probe.status == "exact", harness.ping.probe
    yield harness
    harness.llm.llm_engine.engine_core.shutdown()


@pytest.fixture
def prose(harness: Harness) -> list[int]:
    """About 1,500 tokens of ordinary text."""
    lines = [
        f"- On day {i} Anna walked {3 * i + 2} kilometres along the river to house {i * 7 % 31} "
        f"and met {['Ben', 'Carla', 'Dmitri', 'Eun-ji', 'Farah'][i % 5]} for tea.\n"
        for i in range(60)
    ]
    return harness.encode_text("".join(lines))
