"""A command line in a home of its own, and an engine without a model behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inferscale_sdk.cli import session
from inferscale_sdk.cli.app import app
from inferscale_sdk.config import settings
from inferscale_sdk.recall import embedders
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.fake_engine import FakeEngine

# What is said of every option is in ``option_walk``.
sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Cli:
    """Runs ``inferscale`` in this process."""

    runner: CliRunner

    def __call__(self, *args: str, stdin: str | None = None, code: int = 0) -> Result:
        result = self.runner.invoke(app, list(args), input=stdin)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        return result

    def json(self, *args: str, stdin: str | None = None, code: int = 0) -> Any:
        end = args.index("--") if "--" in args else len(args)
        args = (*args[:end], "--json", *args[end:])
        return json.loads(self(*args, stdin=stdin, code=code).stdout)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Iterator[Any]:
    for name in ("SERVER_PYTHON", "SERVER_SECRET", "BASE_URL", "API_KEY", "KV_KEY", "REMOTE_URL"):
        monkeypatch.delenv(f"INFERSCALE_{name}", raising=False)
    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path / "home"))
    # Tables and errors as wide as they need to be, wherever the tests run.
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(embedders, "bundled_embedder", FakeEmbedder)
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


@pytest.fixture
def cli() -> Cli:
    return Cli(CliRunner())


@pytest.fixture
def fake_engine(monkeypatch) -> FakeEngine:
    """Answers wherever a command would connect to or launch a server."""
    fake = FakeEngine(answer=lambda _plan, text: f"I read {len(text)} letters.")
    for name in ("connect", "launch_engine"):
        monkeypatch.setattr(session, name, _always(fake))
    return fake


def _always(engine: FakeEngine) -> Callable[..., FakeEngine]:
    return lambda *_args, **_kwargs: engine
