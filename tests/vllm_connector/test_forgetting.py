"""A key that was forgotten does not come back by what was under way, on the scheduler's side."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scheduler_scene import ask, hello, scheduler_of, step

from inferscale_sdk.kv.key import UNOWNED, token_digest
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.protocol import (
    FIELD,
    CaptureSpan,
    EncodeOp,
    ForgetOp,
    InjectOp,
    PrefetchOp,
    Reason,
    SegmentRef,
    salt_suffix,
)
from inferscale_sdk.testing.tier_suite import make_key
from inferscale_sdk.tiers.deletions import DeletionLog
from inferscale_sdk.vllm_connector.capture import Recorder
from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.metadata import (
    Captured,
    CaptureStep,
    Commands,
    Forgotten,
    Span,
    Staged,
    WorkerReport,
)
from inferscale_sdk.vllm_connector.scheduler import SchedulerHalf
from inferscale_sdk.vllm_connector.storage import open_below

A, B = make_key("a"), make_key("b")
PROMPT = list(range(8))
FACTS = EncodeOp(
    fingerprint="model",
    captures=(CaptureSpan(key=A, start=0, stop=4), CaptureSpan(key=B, start=4, stop=8)),
)


@pytest.fixture(params=[1, 2])
def half(request: pytest.FixtureRequest) -> SchedulerHalf:
    return scheduler_of(*[hello(request.param)] * request.param, require_probe=False)


def begin(half: SchedulerHalf, request_id: str, op: Any, salt: str | None = None) -> Any:
    return ask(half, request_id, op, PROMPT, salt)


def said(half: SchedulerHalf, **what: Any) -> None:
    """Every rank says the same."""
    for _ in range(half._core.index.world_size):
        half.absorb(WorkerReport(**{name: [one] for name, one in what.items()}))


def captured(request_id: str, key: str) -> Captured:
    return Captured(request_id, key, n_tokens=4, token_digest="d", nbytes=100)


def forget(half: SchedulerHalf, *keys: str) -> Any:
    asked = begin(half, "forget", ForgetOp(keys=keys))
    assert half.match(asked, 0) is None
    return asked


def done(half: SchedulerHalf, asked: Any, commands: Commands) -> dict[str, Any]:
    (order,) = commands.forget
    for key in order.keys:
        said(half, forgotten=Forgotten(order.serial, key, existed=True))
    assert half.match(asked, 0) == 0
    answer = half.finished(asked)
    assert answer is not None
    return answer[FIELD]


def is_there(half: SchedulerHalf, key: str) -> bool:
    return half._core.index.get(key) is not None


def test_a_capture_reported_after_the_order_to_forget_leaves_nothing(half: SchedulerHalf) -> None:
    encode = begin(half, "encode", FACTS)
    assert half.match(encode, 0) == 0
    step(half, ("encode", 0, 8))
    asked = forget(half, A)
    commands = step(half)
    said(half, captured=captured("encode", A))  # of the step before
    said(half, captured=captured("encode", B))
    assert not is_there(half, A) and is_there(half, B)
    assert done(half, asked, commands)["forgotten"] == 1
    assert not is_there(half, A)
    answer = half.finished(encode)
    assert answer is not None
    assert (answer[FIELD]["stored"], answer[FIELD]["failed"]) == ([B], {A: "incomplete"})
    assert half._core.index.stats()["used_bytes"] == 100 * half._core.index.world_size


def test_the_same_in_one_report_and_with_a_client_that_has_gone(half: SchedulerHalf) -> None:
    encode = begin(half, "encode", FACTS)
    half.match(encode, 0)
    step(half, ("encode", 0, 8))
    half.finished(encode)
    forget(half, A)
    (order,) = step(half).forget
    half.finished(SimpleNamespace(request_id="forget"))  # it is aborted, too
    both = {"captured": captured("encode", A), "forgotten": Forgotten(order.serial, A, True)}
    said(half, **both)
    assert not is_there(half, A)
    assert half._core.orders == {} and not half._core.index.is_forgetting([A])


def test_a_long_encoding_under_way_gives_the_forgotten_fact_up(half: SchedulerHalf) -> None:
    encode = begin(half, "encode", FACTS)
    half.match(encode, 0)
    (before,) = step(half, ("encode", 0, 2)).captures
    assert [span.key for span in before.spans] == [A, B]
    asked = forget(half, A)
    commands = step(half, ("encode", 2, 6))
    (after,) = commands.captures
    assert [span.key for span in after.spans] == [B]
    done(half, asked, commands)
    assert [span.key for span in step(half, ("encode", 6, 8)).captures[0].spans] == [B]
    said(half, captured=captured("encode", B))
    answer = half.finished(encode)
    assert answer is not None
    assert (answer[FIELD]["stored"], answer[FIELD]["failed"]) == ([B], {A: "incomplete"})


def test_what_is_encoded_anew_waits_for_the_deletion_and_stays(half: SchedulerHalf) -> None:
    asked = forget(half, A)
    commands = step(half)
    encode = begin(half, "encode", FACTS)
    assert half.match(encode, 0) is None
    done(half, asked, commands)
    assert half.match(encode, 0) == 0
    (capture,) = step(half, ("encode", 0, 8)).captures
    assert [span.key for span in capture.spans] == [A, B]
    said(half, captured=captured("encode", A))
    assert is_there(half, A)


def test_a_read_that_comes_back_after_the_order_leaves_nothing(half: SchedulerHalf) -> None:
    assert half._core.index.fetch([A]) == {A}
    step(half)
    asked = forget(half, A)
    commands = step(half)
    said(half, staged=Staged(A, n_tokens=4, token_digest="d", nbytes=100))
    assert not is_there(half, A)
    assert half._core.index.take_commands()[1] == (A,)
    done(half, asked, commands)
    assert not is_there(half, A)
    assert half._core.index.unanswered({A}) == set()


def test_two_deletions_of_one_key_are_both_waited_for(half: SchedulerHalf) -> None:
    first, second = (begin(half, name, ForgetOp(keys=(A,))) for name in ("one", "two"))
    assert half.match(first, 0) is half.match(second, 0) is None
    one, two = step(half).forget
    said(half, forgotten=Forgotten(one.serial, A, existed=True))
    said(half, captured=captured("encode", A))
    assert not is_there(half, A)
    said(half, forgotten=Forgotten(two.serial, A, existed=False))
    said(half, captured=captured("later", A))
    assert is_there(half, A)


def test_a_preamble_is_not_learnt_under_a_key_that_is_being_forgotten(half: SchedulerHalf) -> None:
    preamble = SegmentRef(key=A, n_tokens=4, kind="preamble")
    op = InjectOp(fingerprint="model", segments=(preamble,))
    salt = f"salt:{salt_suffix([A])}"
    early = begin(half, "early", op, salt)
    assert half.match(early, 0) is None
    said(half, staged=Staged(A, Reason.MISSING))
    assert half.match(early, 0) == 0
    asked = forget(half, A)
    commands = step(half, ("early", 0, 8))
    assert commands.captures == ()
    late = begin(half, "late", op, salt)
    assert half.match(late, 0) is None
    said(half, staged=Staged(A, Reason.MISSING))
    assert half.match(late, 0) == 0
    assert step(half, ("late", 0, 8)).captures == ()
    done(half, asked, commands)


@pytest.mark.parametrize("owner", ["", "0a"])
def test_a_learnt_preamble_counts_against_an_owner(half: SchedulerHalf, owner: str) -> None:
    preamble = SegmentRef(key=A, n_tokens=4, kind="preamble")
    op = InjectOp(fingerprint="model", segments=(preamble,), owner=owner)
    asked = begin(half, "r", op, f"salt:{salt_suffix([A])}")
    assert half.match(asked, 0) is None
    said(half, staged=Staged(A, Reason.MISSING))
    assert half.match(asked, 0) == 0
    (capture,) = step(half, ("r", 0, 8)).captures
    assert [span.owner for span in capture.spans] == [owner or UNOWNED]


def test_preambles_of_nobody_push_out_one_another_and_nobody_else() -> None:
    index = SegmentIndex(100_000, owner_bytes=250)
    index.add(Captured("r", A, n_tokens=4, token_digest="d", nbytes=100, owner="0a"))
    keys = [make_key(n) for n in range(9)]
    for key in keys:
        index.add(Captured("r", key, n_tokens=4, token_digest="d", nbytes=100, owner=UNOWNED))
    assert [key for key in keys if index.get(key)] == keys[-2:]
    assert index.get(A) is not None


def test_the_recorder_drops_the_forgotten_span_and_keeps_the_other() -> None:
    layout = SegmentLayout(n_layers=1, n_kv_heads=1, head_dim=2, dtype=torch.float32)
    stack: Any = SimpleNamespace(
        layout=layout, block_size=8, device=torch.device("cpu"), modules=[None]
    )
    recorder = Recorder(stack)
    spans = tuple(
        Span(key, start, start + 4, token_digest(PROMPT[start : start + 4]))
        for key, start in ((A, 0), (B, 4))
    )
    rows = torch.arange(16.0).reshape(8, 1, 2)
    for first, last in ((0, 3), (3, 8)):
        recorder.arm((CaptureStep("encode", (0,), first, last, spans),))
        recorder.hook(0, rows[first:last], rows[first:last], torch.arange(first, last))
        if first:
            recorder.forget([A])
        kept = recorder.disarm()
    assert [span.key for _, span, _ in kept] == [B]
    assert torch.equal(kept[0][2].data[0, 0], rows[4:])
    assert recorder._captures == {}


@pytest.fixture
def on_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SchedulerHalf, DeletionLog]:
    """A scheduler on a folder, and what another server on it says."""
    half = scheduler_of(hello(1), require_probe=False, disk_path=tmp_path)
    assert half._deletions is not None
    monkeypatch.setattr(half._deletions, "_every_seconds", 0.0)
    return half, DeletionLog(tmp_path)


def staged(half: SchedulerHalf, key: str) -> None:
    said(half, staged=Staged(key, n_tokens=4, token_digest="d", nbytes=100))


def test_what_another_server_deleted_is_gone_before_the_next_request_is_looked_at(
    on_folder: tuple[SchedulerHalf, DeletionLog],
) -> None:
    half, other = on_folder
    for key in (A, B):
        half._core.index.fetch([key])
        staged(half, key)
    step(half)
    other.add([A])
    begin(half, "question", PrefetchOp(keys=(B,)))
    assert not is_there(half, A)
    assert is_there(half, B)
    assert step(half).evict == (A,)
    assert half._core.counters["forgotten_segments"] == 1


def test_what_is_read_while_another_server_deletes_it_is_not_kept(
    on_folder: tuple[SchedulerHalf, DeletionLog],
) -> None:
    half, other = on_folder
    half._core.index.fetch([A, B])
    assert set(step(half).stage) == {A, B}
    other.add([A])
    step(half)
    staged(half, A)
    staged(half, B)
    assert not is_there(half, A)
    assert is_there(half, B)
    assert step(half).evict == (A,)
    # Encoded anew after the deletion it is another matter.
    half._core.index._absent.clear()
    half._core.index.fetch([A])
    staged(half, A)
    assert is_there(half, A)


def test_a_read_in_vain_does_not_speak_against_the_next_one(
    on_folder: tuple[SchedulerHalf, DeletionLog],
) -> None:
    half, other = on_folder
    half._core.index.fetch([A])
    other.add([A])
    step(half)
    said(half, staged=Staged(A, Reason.MISSING))
    half._core.index._absent.clear()
    half._core.index.fetch([A])
    staged(half, A)
    assert is_there(half, A)


def test_all_parts_of_one_server_are_one_author(tmp_path: Path) -> None:
    half = SchedulerHalf(
        ConnectorConfig(disk_path=tmp_path), SimpleNamespace(fingerprint="m"), server_id="one"
    )
    below = open_below(ConnectorConfig(disk_path=tmp_path), "m", 0, server_id="one")
    assert half._deletions is not None and below is not None
    half._deletions._every_seconds = 0.0
    below.delete_everywhere(A)
    assert half._deletions.unseen() == set()
    stranger = open_below(ConnectorConfig(disk_path=tmp_path), "m", 0, server_id="two")
    assert stranger is not None
    stranger.delete_everywhere(B)
    assert half._deletions.unseen() == {B}
