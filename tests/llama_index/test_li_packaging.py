"""Namespaces are shared with other distributions, and nothing is defined twice."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "integrations" / "llama_index"
NAMES = [
    "InferScaleIngestion",
    "InferScaleLLM",
    "InferScaleMemory",
    "InferScaleMemoryBlock",
    "InferScaleRetriever",
]


def run(code: str, **env: str) -> str:
    """Run code in an interpreter of its own; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=FOLDER.parents[1],
        env={"PATH": "", "HOME": "/nonexistent", **env},
    ).stdout


def test_no_package_of_the_namespace_has_an_init():
    root = FOLDER / "llama_index"
    inits = sorted(str(p.parent.relative_to(root)) for p in root.rglob("__init__.py"))
    assert inits == ["llms/inferscale", "memory/inferscale", "retrievers/inferscale"]
    for init in inits:
        assert (root / init / "py.typed").exists()


def test_the_alias_gives_the_same_objects():
    import llama_index.llms.inferscale as llms
    import llama_index.memory.inferscale as memory
    import llama_index.retrievers.inferscale as retrievers

    import integrations.llama_index as alias

    assert sorted(alias.__all__) == NAMES
    for module in (llms, memory, retrievers):
        for name in module.__all__:
            assert getattr(alias, name) is getattr(module, name)
            assert getattr(module, name).__module__.startswith(module.__name__)
    with pytest.raises(AttributeError, match="nothing"):
        alias.nothing  # noqa: B018


def test_the_hub_table_names_the_classes():
    table = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["llamahub"]
    assert sorted(table["class_authors"]) == NAMES
    assert table["import_path"] == "llama_index.memory.inferscale"


@pytest.mark.parametrize("first", ["mem0", "inferscale"])
def test_it_lives_beside_another_memory_of_the_namespace(first, tmp_path):
    """In either order of import; the other one must not phone home from a test."""
    pytest.importorskip("llama_index.memory.mem0", reason="the group llama-index installs it")
    second = "inferscale" if first == "mem0" else "mem0"
    code = f"""
import socket
def no_network(*a, **k): raise AssertionError("a test must not use the network")
socket.socket.connect = no_network
import llama_index.memory.{first}, llama_index.memory.{second}
import llama_index
assert not getattr(llama_index, "__file__", None)
print(llama_index.memory.mem0.Mem0Memory.__name__, end=" ")
print(llama_index.memory.inferscale.InferScaleMemory.__name__)
"""
    out = run(code, MEM0_TELEMETRY="False", MEM0_DIR=str(tmp_path))
    assert out.split() == ["Mem0Memory", "InferScaleMemory"]


class StandIn:
    """In place of Mem0's client: keeps what it is given."""

    def __init__(self):
        self.kept = []

    def add(self, messages, **ids):
        self.kept.append((messages, ids))

    def search(self, query, **_):
        return {"results": [{"memory": "from mem0", "categories": [], "metadata": None}]}


async def test_both_memories_serve_one_process(memory, make_core_memory):
    mem0 = pytest.importorskip("llama_index.memory.mem0", reason="the group llama-index")
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.memory.inferscale import InferScaleMemory

    client = StandIn()
    theirs = mem0.Mem0Memory(
        context={"user_id": "ann"}, primary_memory=make_core_memory(), client=client
    )
    ours = InferScaleMemory(memory, user_id="ann", top_k=1)
    for chat in (theirs, ours):
        await chat.aput(ChatMessage(role="user", content="Ann's dog is called?"))
    assert "from mem0" in str((await theirs.aget())[0].content)
    assert "[[ifs:" in str((await ours.aget())[-1].content)
    assert len(client.kept) == 1


def test_both_adapters_are_installed_in_one_environment(memory):
    pytest.importorskip("langchain_inferscale", reason="make setup installs both")
    assert version("llama-index-inferscale")
    assert version("langchain-inferscale")
    from llama_index.retrievers.inferscale import InferScaleRetriever

    from langchain_inferscale import InferScaleRetriever as LangChainRetriever

    query = "Ann's dog is called?"
    ours = InferScaleRetriever(memory, user_id="ann", top_k=1).retrieve(query)[0].node
    theirs = LangChainRetriever(memory=memory, user_id="ann", k=1).invoke(query)[0]
    assert ours.metadata["inferscale"] == theirs.metadata["inferscale"]


def test_importing_the_adapters_loads_no_tensor_library():
    code = """
import sys
import llama_index.llms.inferscale, llama_index.memory.inferscale
import llama_index.retrievers.inferscale
print([name for name in ("torch", "vllm", "faiss", "sentence_transformers") if name in sys.modules])
"""
    assert run(code).strip() == "[]"
