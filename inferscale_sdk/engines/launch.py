"""A server as a child process: started, waited for, ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from inferscale_sdk.engines import guard
from inferscale_sdk.errors import ConfigurationError, EngineError, EngineTimeout

__all__ = ["ServerProcess", "free_port"]

_POLL_SECONDS = 0.1
_LEADER_SECONDS = 15.0
_REST_SECONDS = 3.0
_KILL_SECONDS = 10.0
_TAIL_BYTES = 4000


def free_port() -> int:
    """A port of the loopback address on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A command in a process group of its own, which does not outlive this process.

    Args:
        argv: The command.
        env: Added to this process's environment.
        log_path: What it writes goes here, appended.

    Raises:
        EngineError: The command cannot be run.
        ConfigurationError: This platform has no process groups.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        if not hasattr(os, "killpg"):
            raise ConfigurationError(
                f"a server cannot be started from here on {sys.platform}; start one with "
                "'inferscale serve' on Linux or macOS and connect by its base_url"
            )
        self.log_path = log_path
        self._argv = list(argv)
        self._env = dict(env)
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._start()
        # A weak reference: the exit hook must not keep a forgotten server alive.
        atexit.register(_stop_if_there, weakref.ref(self))

    @property
    def pid(self) -> int | None:
        """The server's process id, ``None`` once it has ended."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def wait_ready(self, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Block until ``is_ready``.

        Raises:
            EngineError: The server ended first; the message has the end of its log.
            EngineTimeout: It was not ready in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            code = self._process.poll() if self._process else None
            if self._process is None or code is not None:
                raise EngineError(
                    f"the server ended with status {code} before it was ready; the end of its log "
                    f"{self.log_path}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise EngineTimeout(
                    f"the server was not ready after {timeout_seconds:g} s; raise "
                    f"startup_timeout_seconds, or see {self.log_path}:\n{self.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def log_tail(self) -> str:
        """The end of what the server wrote."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError as error:
            return f"(no log: {error})"

    def restart(self) -> None:
        """End the server if it still runs and start the same command again."""
        with self._lock:
            self.stop()
            self._start()

    def stop(self) -> None:
        """End the server: politely, then by force. Twice is fine."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server by force at once, as a crash would."""
        self._end(signal.SIGKILL)

    # -- inside ----------------------------------------------------------------------------

    def _start(self) -> None:
        self.log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with self._lock:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    env={**os.environ, **self._env},
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"cannot run {self._argv[0]!r}: {error}") from error
            finally:
                os.close(descriptor)
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(self._process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _end(self, first: signal.Signals) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _end_group(process, first)
            self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        watcher, self._guard = self._guard, None
        if watcher is None or watcher.stdin is None:
            return
        with contextlib.suppress(OSError):
            watcher.stdin.write(b"x")
            watcher.stdin.close()
        watcher.wait(timeout=_KILL_SECONDS)


def _end_group(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """The leader first, which ends its own processes in order; then whoever is left."""
    if first == signal.SIGTERM:
        process.terminate()
        _wait_until(lambda: process.poll() is not None, _LEADER_SECONDS)
        _signal_group(process.pid, signal.SIGTERM)
        _wait_until(lambda: not _group_lives(process), _REST_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait(timeout=_KILL_SECONDS)


def _wait_until(condition: Callable[[], bool], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is None:
        return True
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _stop_if_there(reference: weakref.ref[ServerProcess]) -> None:
    server = reference()
    if server is not None:
        server.stop()
