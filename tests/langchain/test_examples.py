"""The examples run on the real server and say what they promise; so does the notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "langchain_conversation": "statements are remembered",
    "langchain_retrieval": "tokens injected",
    "langchain_agent": "Forgotten: My dog is called Salt.",
    "langchain_langgraph_store": "tokens injected",
    "langchain_migrate_from_mem0": "I am allergic to peanuts.",
    "langchain_migrate_from_vectorstore": "[[ifs:",
}


@pytest.fixture
def env(engine, tmp_path):
    """As a user has it: the address of a server, and a folder of his own."""
    return {
        **os.environ,
        "INFERSCALE_BASE_URL": engine.base_url,
        "INFERSCALE_HOME": str(tmp_path / "home"),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
    }


def test_every_example_is_run():
    assert {p.stem for p in EXAMPLES.glob("langchain_*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_example(name, env):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAID[name] in done.stdout, done.stdout


@pytest.mark.slow
def test_notebook(env, tmp_path, monkeypatch):
    """Its own assertions hold, and it draws one picture."""
    import nbformat
    from nbclient import NotebookClient

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(EXAMPLES / "langchain_ttft.ipynb", as_version=4)
    NotebookClient(notebook, timeout=280, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert "k=50" in json.dumps(outputs)
