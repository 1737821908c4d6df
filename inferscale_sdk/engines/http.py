"""JSON over HTTP with the package's errors, sync and async. Knows nothing about memory."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import httpx

from inferscale_sdk.errors import (
    ConfigurationError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
)

__all__ = ["HttpClient", "check_address"]

_FIRST_RETRY_SECONDS = 0.1
# Servers close idle connections after 5 s. Giving them up earlier avoids sending a request into
# one that is being closed.
_KEEPALIVE_SECONDS = 2.0
_GATEWAY_STATUSES = frozenset({502, 503, 504})
_END = "[DONE]"

JSONObject = dict[str, Any]


class _Kept(NamedTuple):
    """The async connections of one event loop, and what closes them."""

    client: httpx.AsyncClient
    keeper: AsyncGenerator[None]


def check_address(base_url: str) -> str:
    """``base_url`` itself, if it is an http address that can be connected to.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        parts = urlsplit(base_url)
        httpx.URL(base_url)
        (parts.hostname or "").encode("idna")
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        possible = is_http and not any(sign.isspace() for sign in base_url)
    except (ValueError, httpx.InvalidURL):
        possible = False
    if not possible:
        raise ConfigurationError(
            f"base_url={base_url!r} is not an address; give one like http://127.0.0.1:8000"
        )
    return base_url


class HttpClient:
    """One server. Safe for several threads and event loops.

    A request is sent again only if nothing of it can have been acted on (no connection was made),
    or if it is idempotent and nothing was received.

    Args:
        base_url: ``http://host:port``; a trailing ``/v1`` is dropped.
        api_key: Sent as bearer token.
        timeout_seconds: How long nothing may arrive.
        connect_timeout_seconds: How long making a connection may take.
        retries: Further attempts.

    Raises:
        ConfigurationError: ``base_url`` is not an http address, or a number is negative.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout_seconds: float,
        connect_timeout_seconds: float,
        retries: int,
    ) -> None:
        check_address(base_url)
        if timeout_seconds <= 0 or connect_timeout_seconds <= 0 or retries < 0:
            raise ConfigurationError(
                f"timeout_seconds={timeout_seconds} and "
                f"connect_timeout_seconds={connect_timeout_seconds} must be above 0 and "
                f"retries={retries} not below"
            )
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._options: JSONObject = {
            "base_url": self.base_url,
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "timeout": httpx.Timeout(timeout_seconds, connect=connect_timeout_seconds),
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS),
            # A proxy for the internet is no way to this machine.
            "trust_env": not _is_loopback(urlsplit(base_url).hostname or ""),
        }
        self._sync = httpx.Client(**self._options)
        self._lock = threading.Lock()
        # Connections belong to the event loop that made them.
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = (
            weakref.WeakKeyDictionary()
        )

    # -- whole answers ---------------------------------------------------------------------

    def get(self, path: str) -> JSONObject:
        """The JSON object at ``path``."""
        return _decoded(self._send(self._sync.build_request("GET", path), idempotent=True))

    def is_healthy(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            return self._sync.get("/health", timeout=5.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def post(self, path: str, body: Mapping[str, Any], *, idempotent: bool = False) -> JSONObject:
        """The JSON answer to ``body``."""
        request = self._sync.build_request("POST", path, **_content(body))
        return _decoded(self._send(request, idempotent=idempotent))

    async def apost(
        self, path: str, body: Mapping[str, Any], *, idempotent: bool = False
    ) -> JSONObject:
        """Async twin of :meth:`post`."""
        request = (await self._client()).build_request("POST", path, **_content(body))
        return _decoded(await self._asend(request, idempotent=idempotent))

    # -- streams ---------------------------------------------------------------------------

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[JSONObject]:
        """Server-sent events as they come.

        Closing the iterator closes the connection, which makes the server stop.
        """
        request = self._sync.build_request("POST", path, **_content(body))
        response = self._send(request, stream=True)
        try:
            if response.is_error:
                response.read()
                _raise_status(response)
            for line in response.iter_lines():
                event = _event(line)
                if event == _END:
                    return
                if isinstance(event, dict):
                    yield event
            self._raise_cut_off()
        except httpx.HTTPError as error:
            self._raise(error)
        finally:
            response.close()

    async def astream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[JSONObject]:
        """Async twin of :meth:`stream`."""
        request = (await self._client()).build_request("POST", path, **_content(body))
        response = await self._asend(request, stream=True)
        try:
            if response.is_error:
                await response.aread()
                _raise_status(response)
            async for line in response.aiter_lines():
                event = _event(line)
                if event == _END:
                    return
                if isinstance(event, dict):
                    yield event
            self._raise_cut_off()
        except httpx.HTTPError as error:
            self._raise(error)
        finally:
            await response.aclose()

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the sync connections; those of an event loop close with it or by :meth:`aclose`."""
        self._sync.close()

    async def aclose(self) -> None:
        """Close the sync connections and those of the running event loop."""
        self._sync.close()
        with self._lock:
            kept = self._async.get(asyncio.get_running_loop())
        if kept is not None:
            await kept.keeper.aclose()

    # -- inside ----------------------------------------------------------------------------

    async def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            kept = self._async.get(loop)
            if kept is None:
                client = httpx.AsyncClient(**self._options)
                kept = self._async[loop] = _Kept(client, self._keep(loop, client))
                fresh = True
            else:
                fresh = False
        if fresh:
            await anext(kept.keeper)
        return kept.client

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient
    ) -> AsyncGenerator[None]:
        """Closes the client with its loop: ending a loop ends the generators begun on it."""
        try:
            yield
        finally:
            with self._lock:
                self._async.pop(loop, None)
            await client.aclose()

    def _send(
        self, request: httpx.Request, *, stream: bool = False, idempotent: bool = False
    ) -> httpx.Response:
        for attempt in range(self._retries + 1):
            try:
                return self._sync.send(request, stream=stream)
            except httpx.HTTPError as error:
                if attempt == self._retries or not _may_repeat(error, idempotent):
                    self._raise(error)
                time.sleep(_FIRST_RETRY_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _asend(
        self, request: httpx.Request, *, stream: bool = False, idempotent: bool = False
    ) -> httpx.Response:
        client = await self._client()
        for attempt in range(self._retries + 1):
            try:
                return await client.send(request, stream=stream)
            except httpx.HTTPError as error:
                if attempt == self._retries or not _may_repeat(error, idempotent):
                    self._raise(error)
                await asyncio.sleep(_FIRST_RETRY_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _raise(self, error: httpx.HTTPError) -> NoReturn:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise EngineUnavailable(
                f"nothing answers at {self.base_url} ({error or 'no connection in time'}); start "
                "a server with 'inferscale serve', or correct base_url"
            ) from error
        if isinstance(error, httpx.TimeoutException):
            raise EngineTimeout(
                f"{self.base_url} sent nothing for {self._timeout_seconds:g} s; "
                "raise timeout_seconds, or send it less at once"
            ) from error
        raise EngineUnavailable(
            f"the connection to {self.base_url} was lost ({error or type(error).__name__}); "
            "see the server's log, and ask again once it is up"
        ) from error

    def _raise_cut_off(self) -> NoReturn:
        raise EngineUnavailable(
            f"{self.base_url} ended the answer before it was finished; see the server's log"
        )


def _may_repeat(error: httpx.HTTPError, idempotent: bool) -> bool:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return True
    # A connection that the server closed while the request was on its way.
    return idempotent and isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)


def _content(body: Mapping[str, Any]) -> JSONObject:
    return {
        "content": json.dumps(body, separators=(",", ":")).encode(),
        "headers": {"Content-Type": "application/json"},
    }


def _decoded(response: httpx.Response) -> JSONObject:
    if response.is_error:
        _raise_status(response)
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EngineError(
            f"{response.request.url} answered {response.text[:200]!r}, which is not a JSON "
            "object; is this a vLLM server?"
        )
    return value


def _event(line: str) -> JSONObject | str | None:
    """One line of a server-sent stream: an event, the end mark, or nothing of interest."""
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == _END:
        return _END
    try:
        event = json.loads(data)
    except ValueError:
        raise EngineError(
            f"the server sent {data[:200]!r} in a stream, which is not JSON"
        ) from None
    if not isinstance(event, dict):
        return None
    if "error" in event:
        raise EngineError(f"the server failed while answering: {_message(event)}")
    return event


def _raise_status(response: httpx.Response) -> NoReturn:
    try:
        message = _message(response.json())
    except ValueError:
        message = response.text[:500]
    kind = EngineUnavailable if response.status_code in _GATEWAY_STATUSES else EngineError
    raise kind(f"{response.request.url} answered {response.status_code}: {message}")


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
