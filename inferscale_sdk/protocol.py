"""The wire protocol between client and connector, version 1.

The object below travels as ``kv_transfer_params["inferscale"]`` of a vLLM request, and the answer
comes back as ``kv_transfer_params["inferscale"]`` of the response. Both sides import this module;
neither guesses at unknown versions, operations or fields.

| op | what it asks | answer |
|---|---|---|
| ``inject`` | copy these segments into the cache, in order | :class:`InjectAnswer` |
| ``encode`` | keep the KV of these spans of the prompt | :class:`EncodeAnswer` |
| ``forget`` | drop these segments from every tier | :class:`ForgetAnswer` |
| ``locate`` | in which tiers do these segments lie | :class:`LocateAnswer` |
| ``prefetch`` | these will be needed in a moment | :class:`PrefetchAnswer` |
| ``probe`` | prove the rotation on the loaded model | :class:`ProbeVerdict` |
| ``ping`` | who are you, what can you do | :class:`PingAnswer` |
| ``stats`` | counters, and reports of earlier requests | :class:`StatsAnswer` |

An operation the server refuses is answered with :class:`Refusal`; the request itself is then
served as plain text. If the server has a secret, every object must carry ``mac``, an HMAC-SHA256
over the canonical JSON of the object without it and without fields that have their default, and
over the prompt's token ids.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from inferscale_sdk.errors import ProtocolError

__all__ = [
    "FIELD",
    "MAX_SEGMENTS",
    "PROTOCOL_VERSION",
    "CaptureSpan",
    "EncodeAnswer",
    "EncodeOp",
    "ForgetAnswer",
    "ForgetOp",
    "InjectAnswer",
    "InjectOp",
    "LayerVerdict",
    "LocateAnswer",
    "LocateOp",
    "PingAnswer",
    "PingOp",
    "PrefetchAnswer",
    "PrefetchOp",
    "ProbeOp",
    "ProbeVerdict",
    "Reason",
    "Refusal",
    "SegmentRef",
    "StatsAnswer",
    "StatsOp",
    "parse_operation",
    "salt_matches",
    "salt_suffix",
    "sign",
    "verify",
]

PROTOCOL_VERSION = 1
FIELD = "inferscale"
MAX_SEGMENTS = 4096
MAX_FORGET = 16384
PROBE_TOKENS = 256

Key = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
ShortText = Annotated[str, Field(max_length=256)]
Owner = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]


class Reason(StrEnum):
    """Why memory was not (wholly) injected, or an operation refused."""

    OK = ""
    NO_OPERATION = "no_operation"
    MALFORMED = "malformed"
    UNSUPPORTED_VERSION = "unsupported_version"
    BAD_SIGNATURE = "bad_signature"
    NO_SALT = "no_salt"
    WRONG_SALT = "wrong_salt"
    WRONG_MODEL = "wrong_model"
    NOT_PROBED = "not_probed"
    PROBE_FAILED = "probe_failed"
    TEXT_ONLY_MODEL = "text_only_model"
    MISSING = "missing"
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 - a reason, not a password
    LOAD_TIMEOUT = "load_timeout"
    LOAD_FAILED = "load_failed"
    INCOMPLETE = "incomplete"
    STORE_FAILED = "store_failed"
    ADAPTER = "adapter"
    INTERNAL = "internal"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SegmentRef(_Frozen):
    """One segment of an injection.

    Args:
        key: The segment's content address, 40 hex digits.
        n_tokens: How many prompt tokens it covers.
        kind: A ``preamble`` starts the prompt and may be learnt on the way; a ``fact`` may not.
    """

    key: Key
    n_tokens: Annotated[int, Field(ge=1, le=1_048_576)]
    kind: Literal["preamble", "fact"] = "fact"


class CaptureSpan(_Frozen):
    """Keep the KV of prompt tokens ``start`` (inclusive) to ``stop`` (exclusive) under ``key``.

    Args:
        key: What is kept is found under it.
        start: First token.
        stop: Behind the last token.
        beside: Another segment of the very same tokens, stored before: the mean of both is kept.
            Where it is not there, nothing is.
    """

    key: Key
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]
    beside: Key | None = None

    @model_validator(mode="after")
    def _ordered(self) -> CaptureSpan:
        if self.stop <= self.start:
            raise ValueError(f"capture stop={self.stop} must be greater than start={self.start}")
        if self.beside == self.key:
            raise ValueError(f"capture {self.key} cannot be averaged with itself; name another key")
        return self


class _Operation(_Frozen):
    v: Literal[1] = 1
    mac: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class InjectOp(_Operation):
    """Inject ``segments``, contiguous from position 0, as far as they are there and match.

    Args:
        fingerprint: The model they are for.
        segments: What to inject.
        report_id: Under which the report is kept for ``stats``.
        owner: Whose budget a preamble counts against that is learnt on the way, as in
            :class:`EncodeOp`; without one, all such preambles share a budget.
    """

    op: Literal["inject"] = "inject"
    fingerprint: ShortText
    segments: Annotated[
        tuple[SegmentRef, ...], Field(min_length=1, max_length=MAX_SEGMENTS, strict=False)
    ]
    report_id: ShortText | None = None
    owner: Owner = ""


class EncodeOp(_Operation):
    """Capture spans of the prompt as segments. Needs ``max_tokens >= 2`` to be answered.

    Args:
        fingerprint: The model they are for.
        captures: The spans.
        owner: Whose budget they count against, see :func:`inferscale_sdk.kv.key.owner_tag`; empty
            for nobody's.
    """

    op: Literal["encode"] = "encode"
    fingerprint: ShortText
    captures: Annotated[
        tuple[CaptureSpan, ...], Field(min_length=1, max_length=MAX_SEGMENTS, strict=False)
    ]
    owner: Owner = ""


class ForgetOp(_Operation):
    """Drop segments from every tier of this server."""

    op: Literal["forget"] = "forget"
    keys: Annotated[tuple[Key, ...], Field(max_length=MAX_FORGET, strict=False)]


class LocateOp(_Operation):
    """Ask in which tiers of this server segments lie. Nothing is read, moved or kept."""

    op: Literal["locate"] = "locate"
    keys: Annotated[tuple[Key, ...], Field(max_length=MAX_FORGET, strict=False)]


class PrefetchOp(_Operation):
    """Say that these segments will be injected in a moment: read those that lie lower down."""

    op: Literal["prefetch"] = "prefetch"
    keys: Annotated[tuple[Key, ...], Field(max_length=MAX_SEGMENTS, strict=False)]


class ProbeOp(_Operation):
    """Prove the rotation. The prompt must be one token repeated ``PROBE_TOKENS`` times."""

    op: Literal["probe"] = "probe"


class PingOp(_Operation):
    """Ask for identity and state."""

    op: Literal["ping"] = "ping"


class StatsOp(_Operation):
    """Ask for counters and for the reports of earlier requests by ``report_id``."""

    op: Literal["stats"] = "stats"
    report_ids: Annotated[tuple[ShortText, ...], Field(max_length=1024, strict=False)] = ()


Operation: TypeAlias = (
    InjectOp | EncodeOp | ForgetOp | LocateOp | ProbeOp | PrefetchOp | PingOp | StatsOp
)

_ADAPTER: TypeAdapter[Operation] = TypeAdapter(Annotated[Operation, Field(discriminator="op")])


class _Answer(BaseModel):
    # A newer server may say more than an older client knows.
    model_config = ConfigDict(extra="ignore", frozen=True)
    v: int = PROTOCOL_VERSION


class Refusal(_Answer):
    """The operation was not carried out; the request was served as plain text."""

    op: Literal["refused"] = "refused"
    reason: Reason
    message: str = ""


class InjectAnswer(_Answer):
    """What became of an injection. Token counts are of the prompt.

    Args:
        reason: Why not everything was injected; empty when it was.
        claimed_tokens: Taken from stored KV, as the scheduler accounts for them.
        loaded_tokens: Written into the cache, by the worker's own record; ``None`` when the
            request was over before the worker had reported (one-token answers): ask ``stats``.
        local_tokens: Found in vLLM's own prefix cache.
        loaded_keys: Segments written, in order.
        missing_keys: Segments this server does not have.
        learned_keys: Preambles captured on the way.
    """

    op: Literal["inject"] = "inject"
    reason: Reason = Reason.OK
    claimed_tokens: int = 0
    loaded_tokens: int | None = 0
    local_tokens: int = 0
    loaded_keys: tuple[str, ...] = ()
    missing_keys: tuple[str, ...] = ()
    learned_keys: tuple[str, ...] = ()


class EncodeAnswer(_Answer):
    """Which spans were stored, and why the others were not."""

    op: Literal["encode"] = "encode"
    stored: tuple[str, ...] = ()
    failed: dict[str, Reason] = Field(default_factory=dict)


class ForgetAnswer(_Answer):
    """What became of keys that shall be gone.

    Args:
        forgotten: How many were present in some tier before they were dropped.
        failed: Those that some tier still has, since removing them there failed; ask again.
    """

    op: Literal["forget"] = "forget"
    forgotten: int = 0
    failed: tuple[str, ...] = ()


class LocateAnswer(_Answer):
    """Where the keys lie: names of tiers by key, on any rank; keys that lie nowhere are left out.

    ``quarantine`` stands for a damaged copy that was set aside.
    """

    op: Literal["locate"] = "locate"
    found: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class PrefetchAnswer(_Answer):
    """How many of the keys are in memory already, and how many are being read."""

    op: Literal["prefetch"] = "prefetch"
    resident: int = 0
    fetching: int = 0


class LayerVerdict(_Answer):
    """The probe's findings on the layers of one kind.

    Args:
        kind: How their keys rotate and how far they look back, for people.
        n_layers: How many there are.
        key_error: Their largest key deviation relative to the layer's largest key.
        value_drift: Their largest value deviation between positions, relative likewise.
    """

    kind: str
    n_layers: int
    key_error: float
    value_drift: float


class ProbeVerdict(_Answer):
    """Whether moving keys by rotation is exact on the loaded model.

    Args:
        status: ``pending`` until probed; ``exact`` or ``text_only`` after.
        reason: Why text only, for people.
        n_layers: Layers probed.
        max_key_error: Largest key deviation relative to the layer's largest key.
        max_value_drift: Largest value deviation between positions, relative likewise.
        worst_layer: Name of the layer with the largest error.
        layers: The same by kind of layer, in the order of the model; empty if not probed.
    """

    op: Literal["probe"] = "probe"
    status: Literal["pending", "exact", "text_only"] = "pending"
    reason: str = ""
    n_layers: int = 0
    max_key_error: float = 0.0
    max_value_drift: float = 0.0
    worst_layer: str = ""
    layers: tuple[LayerVerdict, ...] = ()


class PingAnswer(_Answer):
    """Identity and state of the server."""

    op: Literal["ping"] = "ping"
    sdk_version: str
    fingerprint: str
    model: str
    block_size: int
    max_model_len: int
    dtype: str
    n_layers: int
    bytes_per_token: int
    probe: ProbeVerdict
    probe_token_id: int = 0
    tiers: dict[str, Any] = Field(default_factory=dict)


class StatsAnswer(_Answer):
    """Counters since start, and the reports asked for (absent ids are left out)."""

    op: Literal["stats"] = "stats"
    counters: dict[str, int] = Field(default_factory=dict)
    tiers: dict[str, Any] = Field(default_factory=dict)
    reports: dict[str, InjectAnswer] = Field(default_factory=dict)


_TOO_DEEP = f"{FIELD!r} is nested too deeply"


def parse_operation(obj: object) -> Operation:
    """Parse what a client sent.

    Args:
        obj: The decoded JSON value of ``kv_transfer_params["inferscale"]``.

    Returns:
        The operation.

    Raises:
        ProtocolError: It is not an object, its version is not 1, its operation is unknown, or a
            field is missing, unknown or out of range. The message names the field and the value.
    """
    if not isinstance(obj, Mapping):
        raise ProtocolError(f"{FIELD!r} must be a JSON object, got {type(obj).__name__}")
    version = obj.get("v")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {_shown(version)} is not supported; "
            f"this server speaks {PROTOCOL_VERSION}"
        )
    # The parser quotes an operation it does not know, and not every value can be written out.
    if not isinstance(obj.get("op"), str):
        raise ProtocolError(f"op: the operation must be a string (got {_shown(obj.get('op'))})")
    try:
        return _ADAPTER.validate_python(dict(obj))
    except ValidationError as error:
        raise ProtocolError(_first_fault(error)) from None
    except RecursionError:
        raise ProtocolError(_TOO_DEEP) from None


def _first_fault(error: ValidationError) -> str:
    try:
        first = error.errors(include_url=False, include_context=False)[0]
    except RecursionError:
        return _TOO_DEEP
    where = ".".join(str(part) for part in first["loc"]) or "object"
    # Both may quote what was sent.
    return f"{where[:80]}: {first['msg'][:200]} (got {_shown(first.get('input'))})"


def _shown(value: object) -> str:
    """The start of a value, for an error message."""
    if isinstance(value, str):
        return repr(value[:80])[:80]
    try:
        return repr(value)[:80]
    except (RecursionError, ValueError):
        # Nested too deeply, or an integer of more digits than Python writes.
        return f"a {type(value).__name__} that cannot be shown"


def _canonical(op: Operation, prompt_token_ids: Sequence[int]) -> bytes:
    # Without what says nothing: a field that only one side knows does not spoil the signature as
    # long as nobody uses it. The operation itself is a default, too, and must be under it.
    body = op.model_dump(mode="json", exclude={"mac"}, exclude_defaults=True)
    body |= {"v": op.v, "op": op.op}
    tokens = hashlib.sha256(json.dumps(list(prompt_token_ids)).encode()).hexdigest()
    return json.dumps([body, tokens], sort_keys=True, separators=(",", ":")).encode()


def sign(op: Operation, prompt_token_ids: Sequence[int], secret: bytes) -> Operation:
    """Return ``op`` with its ``mac`` set, binding it to the prompt's tokens."""
    mac = hmac.new(secret, _canonical(op, prompt_token_ids), hashlib.sha256).hexdigest()
    return op.model_copy(update={"mac": mac})


def verify(op: Operation, prompt_token_ids: Sequence[int], secret: bytes) -> bool:
    """Whether ``op`` carries the right ``mac`` for these tokens. Constant time."""
    if op.mac is None:
        return False
    mac = hmac.new(secret, _canonical(op, prompt_token_ids), hashlib.sha256).hexdigest()
    return hmac.compare_digest(mac, op.mac)


def salt_suffix(keys: Sequence[str]) -> str:
    """The part of ``cache_salt`` that binds it to the ordered keys of an injection, 32 hex digits.

    vLLM's prefix cache files blocks under token ids and salt, not under what was injected. The
    server checks that an injecting request's salt ends in this, so that blocks holding injected
    KV can only be found by a request that injects exactly the same segments.
    """
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]


def salt_matches(salt: str, keys: Sequence[str]) -> bool:
    """Whether ``salt`` is bound to exactly these keys in this order."""
    return salt.endswith(":" + salt_suffix(keys))
