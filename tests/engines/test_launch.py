"""Servers as child processes: they start, are waited for, and never outlive us."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inferscale_sdk.engines.launch import ServerProcess, free_port
from inferscale_sdk.engines.vllm import VLLMEngine
from inferscale_sdk.errors import ConfigurationError, EngineError, EngineTimeout, EngineUnavailable
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

# A server that has a child of its own, as vLLM has, and takes its time to end.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead; in a container nobody may be there to bury it.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def _wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _child_of(log: Path) -> int:
    _wait_for(lambda: log.exists() and "child" in log.read_text())
    return int(log.read_text().split()[1])


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_whole_family_ends(tmp_path: Path, how: str) -> None:
    log = tmp_path / "logs" / "server.log"
    server = ServerProcess([sys.executable, "-c", FAMILY], {}, log)
    child, pid = _child_of(log), server.pid
    assert pid is not None
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    getattr(server, how)()
    assert server.pid is None
    _wait_for(lambda: not _alive(pid) and not _alive(child))
    server.stop()


def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from inferscale_sdk.engines.launch import ServerProcess
        server = ServerProcess([sys.executable, "-c", {FAMILY!r}], {{}}, Path({str(log)!r}))
        print(server.pid, flush=True)
        time.sleep(600)
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    child = _child_of(log)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _wait_for(lambda: not _alive(pid) and not _alive(child))


def test_it_ends_with_an_ordinary_exit(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    script = (
        "import sys; from pathlib import Path\n"
        "from inferscale_sdk.engines.launch import ServerProcess\n"
        f"server = ServerProcess(['sleep', '600'], {{}}, Path({str(log)!r}))\n"
        "print(server.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not _alive(int(done.stdout))


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    made: list[ServerProcess] = []

    def start() -> None:
        made.append(ServerProcess(["sleep", "600"], {}, tmp_path / "server.log"))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert made[0].pid is not None
    made[0].stop()


def test_death_before_ready_shows_the_log(tmp_path: Path) -> None:
    code = "import sys; print('no such model'); sys.exit(3)"
    server = ServerProcess([sys.executable, "-c", code], {}, tmp_path / "server.log")
    with pytest.raises(EngineError, match=r"(?s)status 3.*server\.log.*no such model"):
        server.wait_ready(lambda: False, 20)
    server.stop()


def test_slow_start_is_a_timeout(tmp_path: Path) -> None:
    server = ServerProcess(["sleep", "600"], {}, tmp_path / "server.log")
    with pytest.raises(EngineTimeout, match=r"0\.1 s.*startup_timeout_seconds"):
        server.wait_ready(lambda: False, 0.1)
    server.stop()


def test_a_command_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no-such-python"):
        ServerProcess(["/no-such-python"], {}, tmp_path / "server.log")


# -- through the engine, with an interpreter that serves the fake server --------------------

STUB = """#!{python}
import os, signal, sys
from inferscale_sdk.testing.fake_server import FakeServer

print("argv", sys.argv[1:], flush=True)
if os.environ.get("STUB_DIES"):
    sys.exit("out of memory")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with FakeServer(port=int(sys.argv[sys.argv.index("--port") + 1])):
    signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def stub_python(tmp_path: Path) -> Path:
    """Stands for an interpreter with vLLM."""
    path = tmp_path / "python"
    path.write_text(STUB.format(python=sys.executable))
    path.chmod(0o700)
    return path


def _launch(stub_python: Path, tmp_path: Path) -> VLLMEngine:
    return VLLMEngine.launch(
        tmp_path,
        python=stub_python,
        disk_path=tmp_path / "kv",
        log_path=tmp_path / "server.log",
        tokenizer=FakeTokenizer(),
        startup_timeout_seconds=60,
    )


def test_launch_restart_close(stub_python: Path, tmp_path: Path) -> None:
    with _launch(stub_python, tmp_path) as engine:
        assert isinstance(engine, VLLMEngine)
        first = engine.pid
        assert engine.info().can_inject
        assert "vllm.entrypoints.openai.api_server" in (tmp_path / "server.log").read_text()
        engine.restart()
        assert engine.pid not in (None, first)
        assert engine.info().can_inject
        engine.kill()
        assert engine.pid is None
        with pytest.raises(EngineUnavailable):
            engine.info()
        engine.restart()
        last = engine.pid
        assert last is not None
    assert engine.pid is None
    assert not _alive(last)
    engine.close()


async def test_aclose_ends_the_server(stub_python: Path, tmp_path: Path) -> None:
    engine = _launch(stub_python, tmp_path)
    pid = engine.pid
    assert pid is not None
    await engine.aclose()
    assert not _alive(pid)


def test_a_launch_that_fails_leaves_nothing(
    stub_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_DIES", "1")
    with pytest.raises(EngineError, match="out of memory"):
        _launch(stub_python, tmp_path)


def test_a_server_that_dies_is_unavailable(stub_python: Path, tmp_path: Path) -> None:
    with _launch(stub_python, tmp_path) as engine:
        assert isinstance(engine, VLLMEngine)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        _wait_for(lambda: engine.pid is None)
        with pytest.raises(EngineUnavailable):
            engine.stats()


def test_bad_options_start_nothing(stub_python: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_gib"):
        VLLMEngine.launch(tmp_path, python=stub_python, kv_cache_gib=0)


def test_free_ports_differ() -> None:
    assert len({free_port() for _ in range(5)}) > 1
