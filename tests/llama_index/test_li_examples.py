"""The examples, the README and the notebook run on the real server and say what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from inferscale_sdk.bridge import shared
from inferscale_sdk.config import settings

EXAMPLES = Path(__file__).parents[2] / "examples"
README = Path(__file__).parents[2] / "integrations" / "llama_index" / "README.md"
NOTEBOOK = EXAMPLES / "llama_index_memory.ipynb"
SAID = {
    "llama_index_chat": "statements are remembered",
    "llama_index_rag": "After the change: thirty bicycles, not twelve",
    "llama_index_agent": "['My dog is called Salt.']",
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211"),
    # Scripts leave connections and LlamaIndex's own database to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def env(engine, tmp_path, monkeypatch):
    """As a user has it: the address of a server, and a folder of his own."""
    monkeypatch.setenv("INFERSCALE_BASE_URL", engine.base_url)
    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield
    shared._close_all()
    monkeypatch.undo()
    settings.cache_clear()


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("llama_index_*.py")} == set(SAID)
    assert list(EXAMPLES.glob("llama_index*.ipynb")) == [NOTEBOOK]


@pytest.mark.engine
@pytest.mark.parametrize("name", SAID)
def test_example(name, env, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert SAID[name] in said
    counts = [int(n) for n in re.findall(r"(\d+)(?: of \d+ prompt)? tokens injected", said)]
    assert name == "llama_index_agent" or max(counts) > 0


@pytest.mark.engine
def test_readme(env, capsys):
    """Its blocks, from top to bottom, are one program."""
    text = README.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code = "\n" * text[: match.start(1)].count("\n") + match[1]
        exec(compile(code, str(README), "exec"), namespace)
    assert "'handles_honoured': 1" in capsys.readouterr().out


def test_the_notebook_was_run_to_its_end():
    import nbformat

    code = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not re.search(r"/(home|root|tmp|work)/", NOTEBOOK.read_text(encoding="utf-8"))


@pytest.mark.engine
@pytest.mark.slow
def test_notebook(env, tmp_path):
    """Its own assertions hold."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=280, kernel_name="python3").execute(cwd=str(tmp_path))
    said = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert "tokens injected" in said
    assert "[[ifs:" in said
