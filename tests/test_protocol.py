"""Whatever a client sends is an operation or a ``ProtocolError``."""

from __future__ import annotations

from typing import Any

import pytest

from inferscale_sdk.errors import ProtocolError
from inferscale_sdk.protocol import PingOp, parse_operation


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
