"""Operations on a server's segments and counters, each on a request of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferscale_sdk.engines.base import EngineInfo
from inferscale_sdk.engines.hints import HintSender
from inferscale_sdk.engines.http import HttpClient
from inferscale_sdk.engines.identity import control, refusal_text
from inferscale_sdk.engines.wire import Answer
from inferscale_sdk.errors import EngineError
from inferscale_sdk.protocol import (
    MAX_FORGET,
    MAX_SEGMENTS,
    ForgetAnswer,
    ForgetOp,
    LocateAnswer,
    LocateOp,
    Operation,
    PrefetchAnswer,
    PrefetchOp,
    Refusal,
    StatsAnswer,
    StatsOp,
)

__all__ = ["Controls"]


class Controls:
    """Asks a server with the connector; one without it is asked in vain, and that is no error.

    Args:
        http: The server.
        secret: Shared with its connector.
        info: Who is there.
    """

    def __init__(
        self, http: HttpClient, secret: bytes | None, info: Callable[[], EngineInfo]
    ) -> None:
        self._http = http
        self._secret = secret
        self._info = info
        self._hints = HintSender(self._send_hint)

    def forget(self, keys: Sequence[str]) -> int:
        """See :meth:`Engine.forget`.

        Raises:
            EngineError: The server refused, or could not remove all; nothing can be assumed to be
                gone.
        """
        forgotten = 0
        for part in _parts(keys):
            answer = self._ask(ForgetOp(keys=part), ForgetAnswer)
            if answer and answer.failed:
                raise EngineError(
                    f"{len(answer.failed)} of {len(part)} segments could not be removed "
                    f"from every tier of {self._http.base_url}, the first is {answer.failed[0]}; "
                    "see the server's log, and forget them again"
                )
            forgotten += answer.forgotten if answer else 0
        return forgotten

    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See :meth:`Engine.locate`.

        Raises:
            EngineError: The server refused, or does not know the question.
        """
        found: dict[str, tuple[str, ...]] = {}
        for part in _parts(keys):
            answer = self._ask(LocateOp(keys=part), LocateAnswer)
            if answer is None and self._info().fingerprint:
                raise EngineError("the server did not say where segments lie; see its log")
            found |= answer.found if answer else {}
        return found

    def stats(self, report_ids: Sequence[str] = ()) -> StatsAnswer:
        """See :meth:`Engine.stats`.

        Raises:
            EngineError: The server refused.
        """
        op = StatsOp(report_ids=tuple(report_ids))
        return self._ask(op, StatsAnswer) or StatsAnswer()

    def prefetch(self, keys: Sequence[str]) -> None:
        """See :meth:`Engine.prefetch`; sent from a thread of its own."""
        self._hints.hint(keys[:MAX_SEGMENTS])

    def close(self) -> None:
        """Send no hints any more."""
        self._hints.close()

    def _send_hint(self, keys: Sequence[str]) -> None:
        self._ask(PrefetchOp(keys=tuple(keys)), PrefetchAnswer)

    def _ask(self, op: Operation, kind: type[Answer]) -> Answer | None:
        """The answer to an operation, ``None`` if nobody there knows it.

        Raises:
            EngineError: The server refused.
        """
        answer = control(self._http, self._info().model, op, kind, secret=self._secret)
        if isinstance(answer, Refusal):
            raise EngineError(refusal_text(answer))
        return answer


def _parts(keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Keys in as many parts as one operation may carry."""
    for start in range(0, len(keys), MAX_FORGET):
        yield tuple(keys[start : start + MAX_FORGET])
