"""``inferscale bench ttft`` on a real server."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.engine


def test_ttft_is_measured_and_proved_on_a_real_server(engine, tmp_path, cli_bench):
    out = cli_bench(
        "ttft", "--k", "0,5", "--arm", "prompt,inject,cached", "--requests", "2",
        "--questions", "2", "--answer-tokens", "2", "--facts", "30",
        "--base-url", engine.base_url, "--work", str(tmp_path / "work"),
        "--plots", str(tmp_path / "plots"), "--json",
    )  # fmt: skip

    for arm in ("prompt", "inject", "cached"):
        assert set(out["ttft_ms"][arm]) == {"k0", "k5"}
    cells = out["cells"]
    assert out["proved"] and out["injected_tokens"] == out["external_hits_delta"] > 0
    assert cells["inject"]["k5"]["fully_injected"] == cells["inject"]["k5"]["requests"] == 2
    assert cells["cached"]["k5"]["found_whole"] == 2
    assert cells["prompt"]["k5"]["prefilled_tokens"] == cells["prompt"]["k5"]["prompt_tokens"]
    assert out["environment"]["server"]["vllm"]
    assert (tmp_path / "plots" / "ttft.html").exists()


@pytest.fixture
def cli_bench(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from inferscale_sdk.cli.app import app
    from inferscale_sdk.config import settings

    monkeypatch.setenv("INFERSCALE_HOME", str(tmp_path / "home"))
    settings.cache_clear()

    def run(*args):
        import torch

        threads = torch.get_num_threads()
        try:
            result = CliRunner().invoke(app, ["bench", *args], catch_exceptions=False)
        finally:
            torch.set_num_threads(threads)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    yield run
    settings.cache_clear()
