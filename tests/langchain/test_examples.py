"""The examples run on the real server and say what they promise; so does the notebook."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from inferscale_sdk.bridge import shared
from inferscale_sdk.config import settings

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).parents[2] / "examples"
README = Path(__file__).parents[2] / "integrations" / "langchain" / "README.md"
SAID = {
    "langchain_conversation": "statements are remembered",
    "langchain_retrieval": "tokens injected",
    "langchain_agent": "Forgotten: My dog is called Salt.",
    "langchain_langgraph_store": "tokens injected",
    "langchain_migrate_from_mem0": "I am allergic to peanuts.",
    "langchain_migrate_from_vectorstore": "[[ifs:",
}


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
    assert {p.stem for p in EXAMPLES.glob("langchain_*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_example(name, env, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert SAID[name] in said
    counts = [int(n) for n in re.findall(r"(\d+)(?: of \d+ prompt)? tokens injected", said)]
    assert not counts or counts[-1] > 0


def test_readme(env, capsys):
    """Its blocks, from top to bottom, are one program."""
    text = README.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code = "\n" * text[: match.start(1)].count("\n") + match[1]
        exec(compile(code, str(README), "exec"), namespace)
    assert "'fact_ids': ['f" in capsys.readouterr().out


@pytest.mark.slow
def test_notebook(env, tmp_path):
    """Its own assertions hold, and it draws one picture."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "langchain_ttft.ipynb", as_version=4)
    NotebookClient(notebook, timeout=280, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert "k=50" in json.dumps(outputs)
