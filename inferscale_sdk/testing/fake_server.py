"""A vLLM server without a model: its HTTP interface, the connector's answers, and faults on demand.

Answers are ``"one two three"``, one word a token. Segments are digests of tokens, verified as the
connector does it. Everything runs in a thread of this process, on the loopback address.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from inferscale_sdk.protocol import FIELD, InjectAnswer, ProbeVerdict
from inferscale_sdk.testing.fake_connector import FakeConnector

__all__ = ["FakeServer", "ServerFaults"]

WORDS = ("one", " two", " three")
JSONObject = dict[str, Any]


@dataclass(slots=True)
class ServerFaults:
    """What goes wrong, set by a test at any time.

    Args:
        delay_s: Seconds before each answer begins.
        status: Answer every request but ``/health`` with this status and an error message.
        hang_up: Close this many connections without an answer.
        break_stream_after: Words after which a stream's connection is cut.
        error_in_stream_after: Words after which an error event comes.
        ignore_tokens: Render messages in place of taking exact tokens, as old servers do.
        hide_cached: Leave out ``prompt_tokens_details``.
    """

    delay_s: float = 0.0
    status: int | None = None
    hang_up: int = 0
    break_stream_after: int | None = None
    error_in_stream_after: int | None = None
    ignore_tokens: bool = False
    hide_cached: bool = False


@dataclass(slots=True)
class _Answered:
    """What one generation request came to."""

    n_tokens: int
    cached: int
    extra: JSONObject | None


@dataclass(slots=True)
class _State:
    requests: list[tuple[str, JSONObject]] = field(default_factory=list)
    cut_streams: int = 0


class FakeServer:
    """Use as a context manager; ``base_url`` is where it listens.

    Args:
        connector: Whether the connector is there.
        probe: What the rotation probe will say.
        secret: The server's secret.
        fingerprint: Of the model.
        max_model_len: Context length in tokens.
        api_key: Required as bearer token.
        port: Where it listens; by default a free port.
    """

    def __init__(
        self,
        *,
        connector: bool = True,
        probe: ProbeVerdict | None = None,
        secret: bytes | None = None,
        fingerprint: str = "fake-model",
        max_model_len: int = 8192,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.faults = ServerFaults()
        self.connector_there = connector
        self.connector = FakeConnector(
            fingerprint=fingerprint,
            max_model_len=max_model_len,
            verdict=probe or ProbeVerdict(status="exact", n_layers=2),
            secret=secret,
        )
        self.api_key = api_key
        self._state = _State()
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    # -- what tests look at ----------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def cut_streams(self) -> int:
        """Streams whose client went away."""
        return self._state.cut_streams

    def bodies(self, path: str) -> list[JSONObject]:
        """Bodies of the requests to ``path``, oldest first."""
        return [body for where, body in self._state.requests if where == path]

    def operations(self, op: str) -> list[JSONObject]:
        """Operations of one kind that arrived, oldest first."""
        sent = [(b.get("kv_transfer_params") or {}).get(FIELD) for _, b in self._state.requests]
        return [obj for obj in sent if obj and obj.get("op") == op]

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # -- answers ---------------------------------------------------------------------------

    def models(self) -> JSONObject:
        """``GET /v1/models``."""
        entry = {"id": "fake", "root": "fake", "max_model_len": self.connector.max_model_len}
        return {"object": "list", "data": [entry]}

    def receive(self, path: str, body: JSONObject) -> _Answered:
        """Carry out the operation in ``body`` and count tokens."""
        transfer = body.get("kv_transfer_params") or {}
        token_ids = body.get("prompt") or transfer.get("prompt_token_ids") or []
        if self.faults.ignore_tokens and path.endswith("chat/completions"):
            token_ids = list(range(len(json.dumps(body["messages"]).split())))
        with self._lock:
            self._state.requests.append((path, body))
            answer = None
            if self.connector_there:
                answer = self.connector.operate(
                    transfer.get(FIELD), token_ids, body.get("cache_salt")
                )
        cached = 0
        if isinstance(answer, InjectAnswer):
            cached = (answer.loaded_tokens or 0) + answer.local_tokens
        extra = None if answer is None else {FIELD: answer.model_dump(mode="json")}
        return _Answered(len(token_ids), cached, extra)

    def left(self) -> None:
        """A client closed a stream."""
        with self._lock:
            self._state.cut_streams += 1

    def usage(self, answered: _Answered, n_words: int) -> JSONObject:
        """The usage object."""
        usage: JSONObject = {
            "prompt_tokens": answered.n_tokens,
            "completion_tokens": n_words,
            "total_tokens": answered.n_tokens + n_words,
        }
        if not self.faults.hide_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": answered.cached}
        return usage


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: FakeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {})
        elif not self._trouble():
            self._json(200, self.server.owner.models())

    def do_POST(self) -> None:
        body: JSONObject = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._trouble():
            return
        answered = self.server.owner.receive(self.path, body)
        words = WORDS[: body.get("max_tokens", 16)]
        chat = self.path.endswith("chat/completions")
        if body.get("stream"):
            self._stream(answered, words, _delta if chat else _text)
            return
        text = "".join(words)
        reason = "stop" if len(words) == len(WORDS) else "length"
        said: JSONObject = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, "finish_reason": reason, **(said if chat else {"text": text})}
        usage = self.server.owner.usage(answered, len(words))
        response = {"choices": [choice], "usage": usage, "kv_transfer_params": answered.extra}
        self._json(200, response)

    def _trouble(self) -> bool:
        owner = self.server.owner
        if owner.faults.hang_up > 0:
            owner.faults.hang_up -= 1
            self.close_connection = True
            return True
        time.sleep(owner.faults.delay_s)
        if owner.api_key and self.headers.get("Authorization") != f"Bearer {owner.api_key}":
            self._json(401, {"error": "Unauthorized"})
            return True
        if owner.faults.status is not None:
            self._json(owner.faults.status, {"error": {"message": "told to fail"}})
            return True
        return False

    def _json(self, status: int, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answered: _Answered, words: Sequence[str], event: _Event) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        owner = self.server.owner
        try:
            for data in self._events(answered, words, event):
                self._chunk(f"data: {data}\n\n".encode())
                time.sleep(owner.faults.delay_s)
        except _CutError:
            self.close_connection = True
            return
        except OSError:
            owner.left()
            return
        with contextlib.suppress(OSError):
            self._chunk(b"")

    def _events(self, answered: _Answered, words: Sequence[str], event: _Event) -> Iterator[str]:
        faults = self.server.owner.faults
        yield event({"role": "assistant", "content": ""}, None)
        for i, word in enumerate(words):
            if faults.break_stream_after == i:
                raise _CutError
            if faults.error_in_stream_after == i:
                yield json.dumps({"error": {"message": "told to fail", "code": 500}})
            yield event({"content": word}, None)
        yield event({}, "stop" if len(words) == len(WORDS) else "length")
        usage = self.server.owner.usage(answered, len(words))
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


_Event = Callable[[JSONObject, str | None], str]
"""Makes one event of a stream from a delta and a reason to stop."""


class _CutError(Exception):
    """Cut the connection here."""


def _delta(delta: JSONObject, finish_reason: str | None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _text(delta: JSONObject, finish_reason: str | None) -> str:
    """The same for a text completion."""
    text = delta.get("content", "")
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})
