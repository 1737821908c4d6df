"""The engine process does not outlive a server that was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from inferscale_sdk.vllm_connector.parent import end_with_parent

# A process that starts another one, as vLLM's API server does with the engine, and tells its id.
SERVER = """
import multiprocessing, signal, sys, time

def engine(deaf):
    from inferscale_sdk.vllm_connector import parent
    parent._GRACE_SECONDS = 0.5
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent.end_with_parent()
    print("up", flush=True)
    time.sleep(300)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=engine, args=(sys.argv[1] == "deaf",))
    child.start()
    print(child.pid, flush=True)
    child.join()
"""


def test_it_ends_with_a_killed_parent(tmp_path, pytestconfig) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    for manners in ("polite", "deaf"):
        server = subprocess.Popen(
            [sys.executable, str(script), manners], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        engine = int(server.stdout.readline())
        assert server.stdout.readline() == "up\n"
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
        assert gone(engine, within=20)


def gone(pid: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


def test_an_application_with_the_engine_inside_is_left_alone() -> None:
    assert multiprocessing.parent_process() is None
    assert end_with_parent() is None
