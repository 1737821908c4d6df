"""Who answers at an address, and whether it can take injected memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferscale_sdk.engines.base import EngineInfo
from inferscale_sdk.engines.http import HttpClient
from inferscale_sdk.engines.wire import Answer, answer_of, control_body
from inferscale_sdk.errors import ConfigurationError, EngineError
from inferscale_sdk.protocol import (
    PROBE_TOKENS,
    ForgetOp,
    LocateOp,
    Operation,
    PingAnswer,
    PingOp,
    ProbeOp,
    ProbeVerdict,
    Reason,
    Refusal,
)

__all__ = ["control", "identify", "random_salt"]

_COMPLETIONS = "/v1/completions"
# Control operations need some prompt; a single token costs one decoding step.
_NO_PROMPT = (0,)

_NO_CONNECTOR = (
    "the server runs without the InferScale connector; start it with 'inferscale serve', or add "
    "the connector to its --kv-transfer-config"
)


@dataclass(frozen=True, slots=True)
class _Served:
    model: str
    root: str
    max_model_len: int


def random_salt() -> str:
    """A salt under which nothing was ever cached, nor will be found again."""
    return "ifs1:" + secrets.token_hex(16)


def control(
    http: HttpClient,
    model: str,
    op: Operation,
    kind: type[Answer],
    *,
    secret: bytes | None,
    token_ids: Sequence[int] = _NO_PROMPT,
) -> Answer | Refusal | None:
    """Carry out ``op`` on a request of its own; ``None`` if nobody there understands it."""
    max_tokens = 2 if isinstance(op, ProbeOp | ForgetOp | LocateOp) else 1
    body = control_body(
        model, op, token_ids, salt=random_salt(), secret=secret, max_tokens=max_tokens
    )
    return answer_of(http.post(_COMPLETIONS, body, idempotent=True), kind)


def identify(http: HttpClient, model: str | None, secret: bytes | None) -> EngineInfo:
    """Ask for the model, the connector's state and, if that is open, the rotation probe.

    Raises:
        ConfigurationError: The server does not serve ``model``.
        EngineError: The server failed; not that it merely cannot inject.
    """
    served = _served(http, model)
    details: dict[str, Any] = {"root": served.root}
    ping = control(http, served.model, PingOp(), PingAnswer, secret=secret)
    if not isinstance(ping, PingAnswer):
        if ping is not None:
            details["refusal"] = ping.reason
        return EngineInfo(
            model=served.model,
            fingerprint="",
            max_model_len=served.max_model_len,
            can_inject=False,
            reason=_NO_CONNECTOR if ping is None else refusal_text(ping),
            details=details,
        )
    verdict: ProbeVerdict = ping.probe
    reason = ""
    if verdict.status == "pending":
        prompt = [ping.probe_token_id] * PROBE_TOKENS
        probed = control(
            http, served.model, ProbeOp(), ProbeVerdict, secret=secret, token_ids=prompt
        )
        if isinstance(probed, ProbeVerdict):
            verdict = probed
        else:
            reason = refusal_text(probed) if probed else "the server did not answer the probe"
    if verdict.status == "text_only":
        reason = verdict.reason or "the rotation probe failed on this model"
    elif verdict.status == "pending" and not reason:
        reason = "the rotation probe has not finished"
    return EngineInfo(
        model=served.model,
        fingerprint=ping.fingerprint if not reason else "",
        max_model_len=min(served.max_model_len, ping.max_model_len),
        can_inject=not reason,
        reason=reason,
        block_size=ping.block_size,
        bytes_per_token=ping.bytes_per_token,
        probe=verdict,
        details={
            **details,
            "dtype": ping.dtype,
            "n_layers": ping.n_layers,
            "sdk_version": ping.sdk_version,
            "fingerprint": ping.fingerprint,
            "tiers": ping.tiers,
        },
    )


def refusal_text(refusal: Refusal) -> str:
    """A refusal as a sentence for people."""
    if refusal.reason is Reason.BAD_SIGNATURE:
        return (
            "the server refused the request's signature; give its secret as secret=, or set "
            "INFERSCALE_SERVER_SECRET to the same value on both sides"
        )
    return f"the server refused: {refusal.message or refusal.reason.value}"


def _served(http: HttpClient, model: str | None) -> _Served:
    entries = http.get("/v1/models").get("data") or []
    chosen = next((e for e in entries if model is None or e.get("id") == model), None)
    if chosen is None:
        names = [entry.get("id") for entry in entries]
        if model is None:
            raise EngineError(f"{http.base_url} serves no model; see the server's log")
        raise ConfigurationError(f"{http.base_url} does not serve {model!r}; it serves {names}")
    return _Served(
        model=str(chosen["id"]),
        root=str(chosen.get("root") or chosen["id"]),
        max_model_len=int(chosen.get("max_model_len") or 0) or 1 << 31,
    )
