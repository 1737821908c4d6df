"""Every tier under a real engine: what comes from another machine is what was computed here."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.testing.redis_server import BINARIES, find_redis, running_redis

HERE = Path(__file__).parent
KEY = base64.b64encode(bytes(range(32))).decode()
N_MEMORY, N_SEGMENTS = 400, 8


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of an engine with an encrypted disk and an encrypted, password-protected remote tier."""
    if find_redis() is None:
        pytest.skip(f"none of {', '.join(BINARIES)} is installed")
    from inferscale_sdk.models import bundled_model_path

    folder = tmp_path_factory.mktemp("tiers")
    with running_redis(folder, password="open-sesame") as server:
        done = subprocess.run(
            [sys.executable, str(HERE / "tiers_run.py"), str(bundled_model_path()), str(folder),
             server.url],
            capture_output=True, text=True, timeout=280,
            env={**os.environ, "INFERSCALE_KV_KEY": KEY},
        )  # fmt: skip
    mark = "TIERS-RESULT "
    line = next((x for x in done.stdout.splitlines() if x.startswith(mark)), None)
    assert line, done.stdout[-3000:] + done.stderr[-3000:]
    assert "open-sesame" not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(line.removeprefix(mark))
    return found


def test_the_device_answers_as_host_memory_does(result: dict[str, Any]) -> None:
    assert result["from host"]["loaded"] == N_MEMORY
    assert result["from device"] == result["from host"]
    assert result["device"]["hits"] >= N_SEGMENTS
    assert result["device"]["segments"] == N_SEGMENTS


def test_what_comes_from_remote_gives_the_same_log_probabilities(result: dict[str, Any]) -> None:
    assert result["from remote"] == result["from host"]
    assert result["remote"]["hits"] == N_SEGMENTS
    assert result["remote"]["read_bytes"] > 0
    assert result["remote"]["read_seconds"] > 0
    assert (result["remote"]["errors"], result["remote"]["quarantined"]) == (0, 0)
    assert result["promoted to disk"] == N_SEGMENTS


def test_files_are_encrypted(result: dict[str, Any]) -> None:
    assert result["files"] == N_SEGMENTS
    assert result["sealed"]


def test_when_all_is_gone_the_text_is_computed(result: dict[str, Any]) -> None:
    assert result["text when all is gone"]


def test_an_encoding_counts_against_its_owner(result: dict[str, Any]) -> None:
    assert result["owner"] == "0a" * 16
    assert result["used by owner"] == result["its bytes"] > 0
