"""Where segments lie, as the server tells it."""

from __future__ import annotations

from connector_harness import Harness

from inferscale_sdk.protocol import ForgetOp, LocateOp

NOWHERE = "e" * 40


def places(harness: Harness, *keys: str) -> dict[str, list[str]]:
    answer = harness.ask([5], LocateOp(keys=keys), n=2).answer
    assert answer is not None and answer["op"] == "locate", answer
    return answer["found"]


def test_a_segment_is_found_in_every_tier_until_it_is_forgotten(harness: Harness) -> None:
    tokens = harness.encode_text("- Una sails a red dinghy around the lighthouse.\n")
    (key,) = harness.encode(tokens + tokens[:1], [(0, len(tokens))], tag="locate")
    assert places(harness, key, NOWHERE) == {key: ["disk", "host"]}
    harness.drop_resident()
    assert places(harness, key, NOWHERE) == {key: ["disk"]}
    # Looking is no use: nothing was brought back to memory.
    assert key not in harness.worker._resident
    assert harness.ask([5], ForgetOp(keys=(key, NOWHERE)), n=2).answer["forgotten"] == 1
    assert places(harness, key, NOWHERE) == {}


def test_many_keys_at_once_and_none(harness: Harness) -> None:
    keys = [f"{i:040x}" for i in range(2000)]
    assert places(harness, *keys) == {}
    assert places(harness) == {}
