"""A Redis or Valkey server of a test's own: on this machine, empty, and gone afterwards.

Needs ``valkey-server`` or ``redis-server`` on the path, as Debian's packages of these names bring.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RedisServer", "find_redis", "running_redis"]

BINARIES = ("valkey-server", "redis-server")
_START_SECONDS = 10.0


def find_redis() -> str | None:
    """The server's binary, ``None`` if there is none on the path."""
    return next((found for name in BINARIES if (found := shutil.which(name))), None)


@dataclass
class RedisServer:
    """A server that can be ended and started again on the same port, without its data."""

    port: int
    folder: Path
    password: str | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it takes connections.

        Raises:
            RuntimeError: It does not.
        """
        binary = find_redis()
        if binary is None:
            raise RuntimeError(f"none of {', '.join(BINARIES)} is on the path")
        argv = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        argv += ["--appendonly", "no", "--dir", str(self.folder), "--daemonize", "no"]
        if self.password:
            argv += ["--requirepass", self.password]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        self.stop()
        raise RuntimeError(f"{' '.join(argv)} did not start within {_START_SECONDS:g} s")

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)
            self.process = None


@contextmanager
def running_redis(folder: Path, *, password: str | None = None) -> Iterator[RedisServer]:
    """A server on a free port, for the length of a block.

    Args:
        folder: Its working folder.
        password: What clients must know, ``None`` for nothing.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = RedisServer(port, folder, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()
