"""A port before another one, where what comes back can be slowed down or cut off."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["PassOn", "proxy"]

PassOn = Callable[[int, socket.socket], bytes | None]
"""Bytes sent back so far and the upstream, to what goes back next; ``None`` resets."""

_LINGER = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # closing resets


@contextmanager
def proxy(target: int, pass_on: PassOn) -> Iterator[int]:
    """A port of this machine before another, for the length of a block.

    What clients send is passed on as it is.

    Args:
        target: The port behind it.
        pass_on: Reads from the upstream and gives what its client gets of it, connection by
            connection; ``b""`` ends one, ``None`` resets it.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target)) as upstream:
                threading.Thread(target=self._forth, args=(upstream,), daemon=True).start()
                sent = 0
                with contextlib.suppress(OSError):
                    while data := pass_on(sent, upstream):
                        self.request.sendall(data)
                        sent += len(data)
                    if data is None:
                        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)

        def _forth(self, upstream: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := self.request.recv(65_536):
                    upstream.sendall(data)
                upstream.shutdown(socket.SHUT_WR)

        def finish(self) -> None:
            # Before the server does: its own way sends an orderly end, also where a reset is due.
            # Whoever still reads from it would keep it open.
            with contextlib.suppress(OSError):
                self.request.shutdown(socket.SHUT_RD)
            self.request.close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
