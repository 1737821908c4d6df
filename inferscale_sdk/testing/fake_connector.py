"""The connector's side of the wire protocol, without an engine: segments are token digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferscale_sdk.errors import ProtocolError
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.protocol import (
    EncodeAnswer,
    EncodeOp,
    ForgetAnswer,
    ForgetOp,
    InjectAnswer,
    InjectOp,
    LocateAnswer,
    LocateOp,
    PingAnswer,
    PingOp,
    PrefetchAnswer,
    PrefetchOp,
    ProbeOp,
    ProbeVerdict,
    Reason,
    Refusal,
    StatsAnswer,
    StatsOp,
    parse_operation,
    salt_matches,
    verify,
)
from inferscale_sdk.testing.fake_segments import why_no_mean

__all__ = ["FakeConnector"]


@dataclass(slots=True)
class FakeConnector:
    """Carries out operations as the connector does, on digests of tokens.

    Args:
        fingerprint: Of the model.
        max_model_len: Context length in tokens.
        verdict: What the rotation probe will say.
        secret: The server's secret.
    """

    fingerprint: str
    max_model_len: int
    verdict: ProbeVerdict
    secret: bytes | None = None
    probed: bool = False
    lose_reports: bool = False
    keep_segments: bool = False
    prefetched: list[str] = field(default_factory=list)
    segments: dict[str, str] = field(default_factory=dict)
    reports: dict[str, InjectAnswer] = field(default_factory=dict)

    def operate(self, obj: object, token_ids: Sequence[int], salt: str | None) -> Any:
        """The answer to a decoded ``inferscale`` object; ``None`` if there was none."""
        if obj is None:
            return None
        try:
            op = parse_operation(obj)
        except ProtocolError as error:
            return Refusal(reason=Reason.MALFORMED, message=str(error))
        if self.secret and not verify(op, token_ids, self.secret):
            return Refusal(reason=Reason.BAD_SIGNATURE, message="not signed")
        match op:
            case EncodeOp():
                return self._encode(op, token_ids)
            case InjectOp():
                return self._inject(op, token_ids, salt)
            case ForgetOp() | LocateOp() | PrefetchOp():
                return self._of_keys(op)
            case _:
                return self._of_server(op)

    def _of_keys(self, op: ForgetOp | LocateOp | PrefetchOp) -> Any:
        there = [key for key in op.keys if key in self.segments]
        match op:
            case ForgetOp():
                if self.keep_segments:
                    return ForgetAnswer(failed=op.keys)
                gone = [self.segments.pop(key, None) for key in op.keys]
                return ForgetAnswer(forgotten=sum(digest is not None for digest in gone))
            case LocateOp():
                return LocateAnswer(found=dict.fromkeys(there, ("host",)))
            case PrefetchOp():
                self.prefetched.extend(op.keys)
                return PrefetchAnswer(resident=len(there))

    def _of_server(self, op: PingOp | ProbeOp | StatsOp) -> Any:
        match op:
            case PingOp():
                return self._ping()
            case ProbeOp():
                self.probed = True
                return self.verdict
            case StatsOp():
                known = {} if self.lose_reports else self.reports
                found = {i: known[i] for i in op.report_ids if i in known}
                counters = {"segments": len(self.segments)}
                return StatsAnswer(counters=counters, reports=found)

    def _ping(self) -> PingAnswer:
        return PingAnswer(
            sdk_version="0",
            fingerprint=self.fingerprint,
            model="fake",
            block_size=16,
            max_model_len=self.max_model_len,
            dtype="bfloat16",
            n_layers=2,
            bytes_per_token=64,
            probe=self.verdict if self.probed else ProbeVerdict(),
            probe_token_id=7,
        )

    def _encode(self, op: EncodeOp, token_ids: Sequence[int]) -> EncodeAnswer | Refusal:
        if op.fingerprint != self.fingerprint:
            return Refusal(reason=Reason.WRONG_MODEL, message="another model")
        failed = {}
        for capture in op.captures:
            digest = token_digest(token_ids[capture.start : capture.stop])
            if reason := why_no_mean(self.segments, capture.beside, digest):
                failed[capture.key] = reason
            else:
                self.segments[capture.key] = digest
        stored = tuple(capture.key for capture in op.captures if capture.key not in failed)
        return EncodeAnswer(stored=stored, failed=failed)

    def _inject(self, op: InjectOp, token_ids: Sequence[int], salt: str | None) -> Any:
        keys = [segment.key for segment in op.segments]
        if not self.probed:
            return Refusal(reason=Reason.NOT_PROBED, message="probe first")
        if op.fingerprint != self.fingerprint:
            return Refusal(reason=Reason.WRONG_MODEL, message="another model")
        if not salt_matches(salt or "", keys):
            return Refusal(reason=Reason.WRONG_SALT, message="not bound to the keys")
        at, loaded, reason = 0, [], Reason.OK
        for segment in op.segments:
            own = token_ids[at : at + segment.n_tokens]
            if self.segments.get(segment.key) != token_digest(own):
                reason = Reason.MISSING
                break
            loaded.append(segment.key)
            at += segment.n_tokens
        claimed = min(at, len(token_ids) - 1)
        missing = tuple(key for key in keys if key not in self.segments)
        answer = InjectAnswer(
            reason=reason,
            claimed_tokens=claimed,
            loaded_tokens=claimed,
            loaded_keys=tuple(loaded),
            missing_keys=missing,
            learned_keys=self._learn(op, token_ids),
        )
        if op.report_id:
            self.reports[op.report_id] = answer
        return answer

    def _learn(self, op: InjectOp, token_ids: Sequence[int]) -> tuple[str, ...]:
        """A preamble that is not there is captured while the prompt is computed."""
        first = op.segments[0]
        if first.kind != "preamble" or first.key in self.segments:
            return ()
        self.segments[first.key] = token_digest(token_ids[: first.n_tokens])
        return (first.key,)
