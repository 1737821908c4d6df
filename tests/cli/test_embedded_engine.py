"""``--engine transformers``: the same commands with the model in this process."""

from __future__ import annotations

import json

import pytest

from inferscale_sdk.cli import session
from inferscale_sdk.cli.app import app
from inferscale_sdk.cli.options import EngineChoice

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def started(monkeypatch, fake_engine):
    """What was asked for where an engine would be started."""
    asked = []

    def launch(*args):
        asked.append(args)
        return fake_engine

    monkeypatch.setattr(session, "launch_engine", launch)
    return asked


def test_chat_starts_no_server(cli, started):
    cli("chat", "--engine", "transformers", "--model", "some/model", stdin="Hello\n")

    assert started == [("some/model", EngineChoice.TRANSFORMERS)]


def test_chat_prefers_the_engine_that_was_named_to_a_server_in_the_environment(
    cli, started, monkeypatch
):
    monkeypatch.setenv("INFERSCALE_BASE_URL", "http://127.0.0.1:1")

    cli("chat", "--engine", "transformers", stdin="Hello\n")

    assert started == [(None, EngineChoice.TRANSFORMERS)]


def test_chat_refuses_a_server_and_an_embedded_engine_at_once(cli, started):
    result = cli("chat", "--engine", "transformers", "--base-url", "http://127.0.0.1:1", code=2)

    assert "give one of the two" in result.stderr
    assert started == []


def test_doctor_examines_a_real_model_in_this_process(cli, tmp_path, home):
    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "model")

    result = cli.runner.invoke(
        app,
        ["doctor", "--model", str(tmp_path / "model"), "--engine", "transformers", "--json"],
    )

    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["rotation probe"]["detail"].startswith("exact on 2 layers")
    assert checks["2 layers"]["detail"].startswith("default, 16 of 16 channels: keys off by at")
    assert checks["injection"]["detail"] == "on: 512 bytes a token"
    assert (home / "kv").is_dir()
