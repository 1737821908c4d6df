"""Client of a vLLM OpenAI server, with or without the connector."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

from inferscale_sdk.config import check_secret, settings
from inferscale_sdk.engines.base import Completion, CompletionChunk, Engine, EngineInfo, Sampling
from inferscale_sdk.engines.controls import Controls
from inferscale_sdk.engines.exchange import Exchange, require_fit
from inferscale_sdk.engines.http import HttpClient
from inferscale_sdk.engines.identity import identify, random_salt
from inferscale_sdk.engines.launch import ServerProcess, free_port
from inferscale_sdk.engines.wire import answer_of, control_body
from inferscale_sdk.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    IncompatibleModel,
)
from inferscale_sdk.prompt.base import ChatTokenizer, EncodePlan, PromptPlan
from inferscale_sdk.protocol import (
    EncodeAnswer,
    InjectAnswer,
    Reason,
    Refusal,
    StatsAnswer,
)

__all__ = ["VLLMEngine"]

logger = logging.getLogger(__name__)

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
# The connector answers an encode request in the step after its prompt was computed.
_ENCODE_MAX_TOKENS = 2
# What these answers mean: the server is not the one that was asked who it is.
_STALE = frozenset({Reason.NOT_PROBED, Reason.WRONG_MODEL})


class VLLMEngine(Engine):
    """Speaks to a vLLM OpenAI server; :meth:`launch` starts one.

    Against a server without the connector the same tokens are sent and computed as text, with one
    warning in the log. Safe for several threads and event loops.

    Args:
        base_url: The server, e.g. ``http://127.0.0.1:8000``.
        model: Name of the served model; by default the server's first.
        tokenizer: The model's tokenizer, or where to load it from; by default from where the
            server loaded the model.
        api_key: Bearer token; by default ``INFERSCALE_API_KEY``.
        secret: Secret shared with the server's connector, 16 characters at least; by default
            ``INFERSCALE_SERVER_SECRET``.
        timeout_seconds: How long the server may send nothing.
        connect_timeout_seconds: How long making a connection may take.
        retries: Further attempts where repeating is safe: no connection was made, or the request
            changes nothing when repeated. An answer that has begun is never asked for again.
        exact_reports: Fetch the server's own report after every stream, at the price of one more
            small request. Otherwise only when the token counts on the stream fall short; then
            tokens from vLLM's own prefix cache may count as injected.

    Raises:
        ConfigurationError: An argument is out of range, or the secret is none.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        tokenizer: ChatTokenizer | str | Path | None = None,
        api_key: str | None = None,
        secret: bytes | str | None = None,
        timeout_seconds: float = 60.0,
        connect_timeout_seconds: float = 5.0,
        retries: int = 2,
        exact_reports: bool = False,
    ) -> None:
        given = check_secret(secret, "secret")
        self._secret = given if given is not None else settings().server_secret
        self._http = HttpClient(
            base_url,
            api_key=api_key or settings().api_key,
            timeout_seconds=timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            retries=retries,
        )
        self._model = model
        self._tokenizer = tokenizer
        self._exact_reports = exact_reports
        self._info: EngineInfo | None = None
        self._lock = threading.RLock()
        self._warned = False
        self._controls = Controls(self._http, self._secret, self.info)
        self._server: ServerProcess | None = None
        self._startup_timeout_seconds = 0.0

    @classmethod
    def launch(
        cls,
        model: str | Path | None = None,
        *,
        port: int | None = None,
        python: str | Path | None = None,
        disk_path: str | Path | None = None,
        persist: bool = True,
        log_path: str | Path | None = None,
        startup_timeout_seconds: float = 600.0,
        tokenizer: ChatTokenizer | str | Path | None = None,
        timeout_seconds: float = 60.0,
        exact_reports: bool = False,
        **options: Any,
    ) -> VLLMEngine:
        """Start a server as a child process and wait until it is ready.

        It listens on this machine only, and ends with :meth:`close`, with this process, or when
        this process dies.

        Args:
            model: A folder or a model's name; by default the bundled SmolLM2.
            port: Where it listens; by default a free port.
            python: The interpreter that has vLLM; by default it is looked for.
            disk_path: Where KV is kept; by default under ``settings().home``.
            persist: ``False`` keeps KV in memory only.
            log_path: Where the server's output goes; by default under ``settings().home``.
            startup_timeout_seconds: How long it may take to be ready.
            tokenizer: See the class.
            timeout_seconds: See the class.
            exact_reports: See the class.
            options: Further arguments of :func:`inferscale_sdk.server.server_command`.

        Raises:
            ConfigurationError: No interpreter with vLLM, or an argument is out of range.
            EngineError: The server ended before it was ready; the message has the end of its log.
            EngineTimeout: It was not ready in time.
        """
        from inferscale_sdk.models import BUNDLED_MODEL, bundled_model_path
        from inferscale_sdk.server import find_server_python, server_command

        secret = check_secret(options.pop("secret", None), "secret") or settings().server_secret
        home = settings().home
        if model is None:
            model = bundled_model_path()
            options.setdefault("served_model_name", BUNDLED_MODEL)
        port = port or free_port()
        if persist:
            disk_path = disk_path or home / "kv"
        argv, env = server_command(
            model,
            python=python or find_server_python(),
            port=port,
            disk_path=disk_path if persist else None,
            secret=secret,
            **options,
        )
        engine = cls(
            f"http://127.0.0.1:{port}",
            tokenizer=tokenizer or str(model),
            secret=secret,
            timeout_seconds=timeout_seconds,
            exact_reports=exact_reports,
        )
        engine._startup_timeout_seconds = startup_timeout_seconds
        log = Path(log_path) if log_path else home / "logs" / f"vllm-{port}.log"
        try:
            engine._server = ServerProcess(argv, env, log)
            engine._wait_ready()
        except BaseException:
            engine.close()
            raise
        return engine

    # -- identity --------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return self._http.base_url

    @property
    def tokenizer(self) -> ChatTokenizer:
        """See :attr:`Engine.tokenizer`."""
        with self._lock:
            if not isinstance(self._tokenizer, ChatTokenizer):
                from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer

                source = self._tokenizer or self.info().details["root"]
                self._tokenizer = TransformersChatTokenizer(source)
            return self._tokenizer

    def info(self, *, refresh: bool = False) -> EngineInfo:
        """See :meth:`Engine.info`.

        Raises:
            ConfigurationError: The server does not serve the model asked for.
        """
        with self._lock:
            if self._info is None or refresh:
                self._info = identify(self._http, self._model, self._secret)
                if not self._info.can_inject and not self._warned:
                    self._warned = True
                    logger.warning("memory is given as prompt text: %s", self._info.reason)
            return self._info

    # -- memory ----------------------------------------------------------------------------

    def encode(self, plan: EncodePlan) -> EncodeAnswer:
        """See :meth:`Engine.encode`.

        Raises:
            IncompatibleModel: The engine cannot inject; see :meth:`info`.
        """
        with self._alert():
            body = self._encode_body(self.info(), plan)
            return self._encoded(plan, self._http.post(_COMPLETIONS, body, idempotent=True))

    async def aencode(self, plan: EncodePlan) -> EncodeAnswer:
        """Async twin of :meth:`encode`."""
        with self._alert():
            body = self._encode_body(await self._ainfo(), plan)
            response = await self._http.apost(_COMPLETIONS, body, idempotent=True)
            return self._encoded(plan, response)

    def forget(self, keys: Sequence[str]) -> int:
        """See :meth:`Engine.forget` and :meth:`Controls.forget`."""
        with self._alert():
            return self._controls.forget(keys)

    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See :meth:`Engine.locate` and :meth:`Controls.locate`."""
        with self._alert():
            return self._controls.locate(keys)

    def prefetch(self, keys: Sequence[str]) -> None:
        """See :meth:`Engine.prefetch`."""
        if self._info is not None and self._info.can_inject:
            self._controls.prefetch(keys)

    def stats(self, report_ids: Sequence[str] = ()) -> StatsAnswer:
        """See :meth:`Engine.stats` and :meth:`Controls.stats`."""
        with self._alert():
            return self._controls.stats(report_ids)

    # -- answers ---------------------------------------------------------------------------

    def generate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """See :meth:`Engine.generate`."""
        sampling = sampling or Sampling()
        with self._alert():
            exchange = self.open(plan, max_tokens=sampling.max_tokens)
            response = self._http.post(_CHAT, exchange.body(sampling))
            return exchange.finish(self.answer_to(exchange, response), raw=response)

    async def agenerate(self, plan: PromptPlan, sampling: Sampling | None = None) -> Completion:
        """Async twin of :meth:`generate`."""
        sampling = sampling or Sampling()
        with self._alert():
            exchange = await self._aopen(plan, sampling, stream=False)
            response = await self._http.apost(_CHAT, exchange.body(sampling))
            return exchange.finish(self.answer_to(exchange, response), raw=response)

    def stream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> Iterator[CompletionChunk]:
        """See :meth:`Engine.stream`. Errors of the plan are raised by the call itself."""
        sampling = sampling or Sampling()
        exchange = self.open(plan, max_tokens=sampling.max_tokens, stream=True)
        return self._stream(exchange, exchange.body(sampling))

    async def astream(
        self, plan: PromptPlan, sampling: Sampling | None = None
    ) -> AsyncIterator[CompletionChunk]:
        """Async twin of :meth:`stream`."""
        sampling = sampling or Sampling()
        with self._alert():
            exchange = await self._aopen(plan, sampling, stream=True)
            body = exchange.body(sampling)
            exchange.start()
            # Closed by name: an abandoned async generator would be closed at some later time.
            async with aclosing(self._http.astream(_CHAT, body)) as events:
                async for event in events:
                    if text := exchange.feed(event):
                        yield CompletionChunk(text)
            answer = await asyncio.to_thread(self.answer_to, exchange)
            yield CompletionChunk("", completion=exchange.finish(answer))

    # -- for those who send requests themselves ----------------------------------------------

    def open(self, plan: PromptPlan, *, max_tokens: int, stream: bool = False) -> Exchange:
        """What a request must carry for ``plan``.

        Whoever sends it hands the response back to :meth:`answer_to`.

        Raises:
            ContextOverflow: The prompt and ``max_tokens`` do not fit into the context.
        """
        return self._open(self.info(), plan, max_tokens, stream=stream)

    def answer_to(
        self, exchange: Exchange, response: Mapping[str, Any] | None = None
    ) -> InjectAnswer | Refusal | None:
        """What the connector said about a request.

        It stands in the response; after a stream whose counts do not tell, the server is asked.

        Args:
            exchange: As :meth:`open` gave it; ``exchange.report`` takes the result.
            response: The whole response; ``None`` after a stream.
        """
        if response is None:
            return self._report(exchange) if exchange.needs_report else None
        answer = exchange.received(response)
        self._note(answer)
        return answer

    # -- life ------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Process id of the server this object started, ``None`` if there is none running."""
        return self._server.pid if self._server else None

    def restart(self) -> None:
        """End the server this object started, if it still runs, and start it again.

        Raises:
            ConfigurationError: This object started none.
            EngineError: As for :meth:`launch`.
        """
        if self._server is None:
            raise ConfigurationError(
                f"the server at {self.base_url} was not started by this engine; restart it where "
                "it was started"
            )
        self._server.restart()
        self._wait_ready()

    def kill(self) -> None:
        """End the server this object started by force, as a crash would."""
        if self._server is not None:
            self._server.kill()
        self._info = None

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        self._controls.close()
        self._http.close()
        if self._server is not None:
            self._server.stop()

    async def aclose(self) -> None:
        """Async twin of :meth:`close`; closes the running event loop's connections as well."""
        self._controls.close()
        await self._http.aclose()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    # -- inside ----------------------------------------------------------------------------

    async def _ainfo(self) -> EngineInfo:
        # Asking is rare and blocks; it must not hold up the event loop.
        info = self._info
        return info if info is not None else await asyncio.to_thread(self.info)

    async def _aopen(self, plan: PromptPlan, sampling: Sampling, *, stream: bool) -> Exchange:
        return self._open(await self._ainfo(), plan, sampling.max_tokens, stream=stream)

    def _open(
        self, info: EngineInfo, plan: PromptPlan, max_tokens: int, *, stream: bool
    ) -> Exchange:
        return Exchange.open(
            info,
            plan,
            max_tokens=max_tokens,
            secret=self._secret,
            stream=stream,
            exact=self._exact_reports,
        )

    def _stream(self, exchange: Exchange, body: dict[str, Any]) -> Iterator[CompletionChunk]:
        with self._alert():
            exchange.start()
            with closing(self._http.stream(_CHAT, body)) as events:
                for event in events:
                    if text := exchange.feed(event):
                        yield CompletionChunk(text)
            yield CompletionChunk("", completion=exchange.finish(self.answer_to(exchange)))

    def _report(self, exchange: Exchange) -> InjectAnswer | None:
        """The server's own report of a stream.

        The answer is there; not knowing what became of the memory must not spoil it.
        """
        if exchange.report_id is None:
            return None
        try:
            answer = self.stats([exchange.report_id]).reports.get(exchange.report_id)
        except EngineError as error:
            logger.warning("no report of a streamed answer: %s", error)
            return None
        self._note(answer)
        return answer

    def _encode_body(self, info: EngineInfo, plan: EncodePlan) -> dict[str, Any]:
        if not info.can_inject:
            raise IncompatibleModel(f"facts cannot be encoded: {info.reason}")
        require_fit(len(plan.token_ids), _ENCODE_MAX_TOKENS, info.max_model_len)
        return control_body(
            info.model,
            plan.op,
            plan.token_ids,
            salt=random_salt(),
            secret=self._secret,
            max_tokens=_ENCODE_MAX_TOKENS,
        )

    def _encoded(self, plan: EncodePlan, response: dict[str, Any]) -> EncodeAnswer:
        answer = answer_of(response, EncodeAnswer)
        if answer is None:
            raise EngineError("the server did not answer an encode request; see its log")
        if isinstance(answer, Refusal):
            self._note(answer)
            return EncodeAnswer(failed={c.key: answer.reason for c in plan.op.captures})
        return answer

    def _note(self, answer: InjectAnswer | Refusal | None) -> None:
        """Ask again who is there when an answer shows that the server is another by now."""
        if answer is not None and answer.reason in _STALE:
            self._info = None

    @contextmanager
    def _alert(self) -> Iterator[None]:
        """What comes back after a loss may be another server: ask again who it is."""
        try:
            yield
        except EngineUnavailable:
            self._info = None
            raise

    def _wait_ready(self) -> None:
        self._info = None
        if self._server is not None:
            self._server.wait_ready(self._http.is_healthy, self._startup_timeout_seconds)
