"""An agent of thirty turns, checkpointed to SQLite and resumed in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_sdk import Memory

pytestmark = pytest.mark.engine

TURNS = [f"Today I read page {10 + i} of my book." for i in range(29)]


def process(engine, folder: Path, turns: list[str]) -> dict:
    env = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("agent_process.py")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script), engine.base_url, str(folder),
         json.dumps(turns)],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "msgpack" not in done.stderr.lower(), done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_thirty_turns_resumed_under_strict_msgpack_still_recall_and_inject(engine, tmp_path):
    with Memory(engine, live_facts=0, path=tmp_path / "memory") as memory:
        memory.add("My sister Ines plays the violin", user_id="ann")
        assert memory.wait_encoded(60)

    first = process(engine, tmp_path, TURNS)
    assert first["resumed"] == 0
    assert first["messages"] == 58
    assert not first["handles_in_state"]

    second = process(engine, tmp_path, ["What does my sister Ines play?"])
    assert second["resumed"] == 58
    assert second["messages"] == 60
    assert second["types"] == ["AIMessage", "HumanMessage"]
    assert not second["handles_in_state"]
    (report,) = second["reports"]
    assert "My sister Ines plays the violin" in second["last_facts"]
    assert report["status"] == "injected", report
    assert report["injected_tokens"] > 0
