"""Every Python block of README and docs, and every example, runs.

Each page is run from top to bottom in one namespace, first without a model, then, where the
session has one, on the real engine.
"""

import re
import runpy
from pathlib import Path

import pytest

import inferscale_sdk
from inferscale_sdk.config import settings
from inferscale_sdk.engines import vllm
from inferscale_sdk.recall import embedders
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if BLOCK.search(page.read_text(encoding="utf-8"))
]
# Those of a framework's adapter run with the adapter's own tests.
ADAPTERS = ("langchain_", "llama_index_")
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if not path.name.startswith(ADAPTERS)
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        # Blank lines before it, so that a traceback names the line of the page.
        code = "\n" * text[: match.start(1)].count("\n") + match[1]
        exec(compile(code, str(page), "exec"), namespace)


def run(path: Path) -> None:
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name="__main__")
    else:
        run_page(path)


@pytest.fixture(autouse=True)
def _place_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield
    settings.cache_clear()


def stand_in(monkeypatch, engine):
    """Whoever connects to a server or launches one gets ``engine``, which stays open."""

    class StandIn:
        def __new__(cls, *_args, **_kwargs):
            return engine

        launch = staticmethod(lambda *_args, **_kwargs: engine)

    monkeypatch.setattr(vllm, "VLLMEngine", StandIn)
    monkeypatch.setattr(inferscale_sdk, "VLLMEngine", StandIn)
    monkeypatch.setattr(type(engine), "close", lambda _self: None)


def test_there_is_something_to_run():
    assert ROOT / "README.md" in PAGES
    assert EXAMPLES


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=name)
def test_runs_without_a_model(path, monkeypatch):
    monkeypatch.setattr(embedders, "bundled_embedder", FakeEmbedder)
    stand_in(monkeypatch, FakeEngine())

    run(path)


@pytest.mark.engine
@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=name)
def test_runs_on_the_real_engine(path, engine, monkeypatch):
    stand_in(monkeypatch, engine)

    run(path)
