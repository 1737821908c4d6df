"""Whatever a client sends is an operation or a ``ProtocolError``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from inferscale_sdk.errors import ProtocolError
from inferscale_sdk.protocol import (
    CaptureSpan,
    EncodeOp,
    ForgetOp,
    InjectOp,
    LocateOp,
    PingOp,
    ProbeOp,
    SegmentRef,
    StatsOp,
    parse_operation,
    sign,
    verify,
)


def _deep(levels: int) -> Any:
    lists: Any = []
    mappings: Any = {}
    for _ in range(levels):
        lists, mappings = [lists], {"a": mappings}
    return [lists, mappings]


VALUES = {
    "deep": _deep(100_000),
    "list": _deep(100_000)[0],
    "mapping": _deep(100_000)[1],
    "long": "x" * 1_000_000,
    "number": 10**5000,
    "bytes": b"\xff" * 100_000,
}


@pytest.mark.parametrize("field", ["v", "op", "segments", "fingerprint", "unknown", "x" * 10_000])
@pytest.mark.parametrize("kind", VALUES)
def test_odd_values_are_refused_with_a_short_message(field: str, kind: str) -> None:
    good = {"v": 1, "op": "inject", "fingerprint": "m", "segments": []}
    with pytest.raises(ProtocolError) as caught:
        parse_operation({**good, field: VALUES[kind]})
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("kind", VALUES)
def test_what_is_no_object_is_refused(kind: str) -> None:
    if kind != "mapping":
        with pytest.raises(ProtocolError, match="JSON object"):
            parse_operation(VALUES[kind])


def test_the_value_and_the_field_are_named() -> None:
    with pytest.raises(ProtocolError, match=r"version 2 .* speaks 1"):
        parse_operation({"v": 2, "op": "ping"})
    with pytest.raises(ProtocolError, match=r"extra.*'why'"):
        parse_operation({"v": 1, "op": "ping", "extra": "why"})
    assert parse_operation({"v": 1, "op": "ping"}) == PingOp()


# -- signatures ----------------------------------------------------------------------------

SECRET = b"0123456789abcdef"
KEY = "a" * 40
OPERATIONS = [
    InjectOp(fingerprint="m", segments=(SegmentRef(key=KEY, n_tokens=3),)),
    InjectOp(fingerprint="m", segments=(SegmentRef(key=KEY, n_tokens=3, kind="preamble"),)),
    InjectOp(fingerprint="m", segments=(SegmentRef(key=KEY, n_tokens=3),), report_id="r"),
    EncodeOp(fingerprint="m", captures=(CaptureSpan(key=KEY, start=0, stop=3),)),
    EncodeOp(fingerprint="m", captures=(CaptureSpan(key=KEY, start=0, stop=3, beside="b" * 40),)),
    ForgetOp(keys=(KEY,)),
    ForgetOp(keys=()),
    LocateOp(keys=(KEY,)),
    LocateOp(keys=()),
    ProbeOp(),
    PingOp(),
    StatsOp(),
    StatsOp(report_ids=("r",)),
]


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_signature_holds_for_this_operation_and_these_tokens_only(op) -> None:
    signed = sign(op, [1, 2, 3], SECRET)
    assert verify(signed, [1, 2, 3], SECRET)
    # On its way it loses what is None, and its defaults come back.
    sent = parse_operation(signed.model_dump(mode="json", exclude_none=True))
    assert verify(sent, [1, 2, 3], SECRET)
    for tokens in ([], [1, 2], [1, 2, 3, 4], [3, 2, 1], [12, 3]):
        assert not verify(signed, tokens, SECRET)
    assert not verify(signed, [1, 2, 3], SECRET + b"x")
    assert not verify(op, [1, 2, 3], SECRET)
    for other in OPERATIONS:
        moved = other.model_copy(update={"mac": signed.mac})
        assert verify(moved, [1, 2, 3], SECRET) == (other == op)


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "\ud83d"},
        {"op": "ping", "\ud83d": 1},
        {"op": "ping", "x": "\ud83d"},
        {"op": "stats", "report_ids": ["\ud83d"]},
        {"op": "stats", "report_ids": [{"\ud83d": 1}]},
        {"op": "ping", "v": "\ud83d"},
    ],
    ids=ascii,
)
def test_half_a_character_is_refused_in_words_that_can_be_sent(fields: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_operation({"v": 1, **fields})
    assert str(caught.value).encode()


def test_a_field_nobody_uses_does_not_spoil_the_signature() -> None:
    """Client and server may be of neighbouring releases."""

    class Newer(ForgetOp):
        reason_code: int = 0

    newer = Newer(keys=(KEY,))
    assert sign(newer, [1], SECRET).mac == sign(ForgetOp(keys=(KEY,)), [1], SECRET).mac
    used = Newer(keys=(KEY,), reason_code=1)
    assert sign(used, [1], SECRET).mac != sign(newer, [1], SECRET).mac


# -- limits --------------------------------------------------------------------------------

SEGMENT = {"key": KEY, "n_tokens": 1}
SPAN = {"key": KEY, "start": 0, "stop": 1}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"op": "inject", "fingerprint": "m", "segments": [SEGMENT] * 4097}, "segments.*4096"),
        ({"op": "encode", "fingerprint": "m", "captures": [SPAN] * 4097}, "captures.*4096"),
        ({"op": "forget", "keys": [KEY] * 16_385}, "keys.*16384"),
        ({"op": "locate", "keys": [KEY] * 16_385}, "keys.*16384"),
        ({"op": "stats", "report_ids": ["r"] * 1025}, "report_ids.*1024"),
        ({"op": "stats", "report_ids": ["r" * 257]}, "report_ids.*256"),
        ({"op": "inject", "fingerprint": "m" * 257, "segments": [SEGMENT]}, "fingerprint.*256"),
        (
            {"op": "inject", "fingerprint": "m", "segments": [SEGMENT | {"n_tokens": 1 << 21}]},
            "n_tokens.*1048576",
        ),
        ({"op": "forget", "keys": ["../../etc/passwd"]}, "keys"),
        ({"op": "forget", "keys": [KEY + "\n"]}, "keys"),
    ],
)
def test_what_is_too_much_is_refused_and_the_limit_named(fields: Any, named: str) -> None:
    with pytest.raises(ProtocolError, match=named) as caught:
        parse_operation({"v": 1} | fields)
    assert len(str(caught.value)) < 600


def test_nothing_is_averaged_with_itself() -> None:
    with pytest.raises(ValidationError, match="with itself"):
        CaptureSpan(key=KEY, start=0, stop=3, beside=KEY)
