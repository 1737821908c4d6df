"""Two ranks have done something when both have said so, of the same order."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_scene import ask, hello, scheduler_of, step

from inferscale_sdk.protocol import FIELD, ForgetOp, LocateOp, ProbeVerdict, Reason
from inferscale_sdk.testing.tier_suite import make_key
from inferscale_sdk.vllm_connector.metadata import (
    Forgotten,
    Located,
    Order,
    Probed,
    WorkerReport,
)
from inferscale_sdk.vllm_connector.scheduler import SchedulerHalf

A, B = make_key("a"), make_key("b")
EXACT = ProbeVerdict(status="exact", max_key_error=0.002)
WORSE = ProbeVerdict(status="exact", max_key_error=0.01, worst_layer="7")
BAD = ProbeVerdict(status="text_only", reason="layer 3 does not rotate")


@pytest.fixture
def half() -> SchedulerHalf:
    return scheduler_of(hello(2), hello(2))


def begin(half: SchedulerHalf, request_id: str, op: Any) -> Any:
    asked = ask(half, request_id, op, [5])
    half.match(asked, 0)
    return asked


def test_a_late_word_on_an_earlier_forget_does_not_count_for_a_later_one(
    half: SchedulerHalf,
) -> None:
    first = begin(half, "first", ForgetOp(keys=(A,)))
    (early,) = step(half).forget
    assert early.keys == (A,)
    half.absorb(WorkerReport(forgotten=[Forgotten(early.serial, A, existed=True)]))
    half.finished(first)  # its client is gone, and one rank has not spoken yet
    second = begin(half, "second", ForgetOp(keys=(A,)))
    (late,) = step(half).forget
    assert late.serial != early.serial
    half.absorb(WorkerReport(forgotten=[Forgotten(late.serial, A, existed=False)]))
    half.absorb(WorkerReport(forgotten=[Forgotten(early.serial, A, existed=True)]))
    assert half.match(second, 0) is None, "one rank has not carried out this order"
    half.absorb(WorkerReport(forgotten=[Forgotten(late.serial, A, existed=False, failed=True)]))
    assert half.match(second, 0) == 0
    answer = half.finished(second)
    assert answer is not None
    assert (answer[FIELD]["forgotten"], answer[FIELD]["failed"]) == (0, [A])


def test_a_late_word_on_an_earlier_locate_does_not_count_for_a_later_one(
    half: SchedulerHalf,
) -> None:
    first = begin(half, "first", LocateOp(keys=(A, B)))
    second = begin(half, "second", LocateOp(keys=(A, B)))
    early, late = step(half).locate
    for order, where in ((early, ("disk",)), (late, ())):
        found = [Located(order.serial, key, where) for key in (A, B)]
        half.absorb(WorkerReport(located=found))
    assert half.match(first, 0) is half.match(second, 0) is None
    half.absorb(WorkerReport(located=[Located(early.serial, key, ()) for key in (A, B)]))
    assert half.match(second, 0) is None
    half.absorb(
        WorkerReport(located=[Located(late.serial, A, ()), Located(late.serial, B, ("x",))])
    )
    assert half.match(first, 0) == half.match(second, 0) == 0
    found = [answer[FIELD]["found"] for one in (first, second) if (answer := half.finished(one))]
    assert found == [{A: ["disk"], B: ["disk"]}, {B: ["x"]}]


def test_nothing_to_forget_is_answered_at_once(half: SchedulerHalf) -> None:
    asked = begin(half, "r", ForgetOp(keys=()))
    assert half.match(asked, 0) == 0
    assert step(half).forget == ()


def probes(half: SchedulerHalf, *found: tuple[str, int, ProbeVerdict]) -> ProbeVerdict:
    half.absorb(WorkerReport(probes=[Probed(*one) for one in found]))
    return half._core.verdict


def test_injection_takes_every_ranks_proof(half: SchedulerHalf) -> None:
    assert probes(half, ("p", 0, EXACT)).status == "pending"
    assert half._core.why_no_injection() is Reason.NOT_PROBED
    # The same rank again, and another probe's, are not the other rank.
    assert probes(half, ("p", 0, EXACT), ("q", 1, EXACT)).status == "pending"
    assert probes(half, ("p", 1, WORSE)) == WORSE
    assert half._core.why_no_injection() is Reason.OK
    assert probes(half, ("q", 0, EXACT)) == EXACT
    assert half._core.probes == {}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("with_other", [True, False])
def test_one_rank_forbids_it_for_good(half: SchedulerHalf, rank: int, with_other: bool) -> None:
    other = [("p", 1 - rank, EXACT)] if with_other else []
    assert probes(half, *other, ("p", rank, BAD)) == BAD
    assert probes(half, ("r", 0, EXACT), ("r", 1, EXACT)) == BAD
    assert half._core.why_no_injection() is Reason.PROBE_FAILED


def test_a_better_probe_does_not_hide_a_rank_that_failed_meanwhile(half: SchedulerHalf) -> None:
    assert probes(half, ("p", 0, EXACT), ("p", 1, EXACT)) == EXACT
    assert probes(half, ("q", 1, BAD)) == BAD


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_rank_whose_model_cannot_be_read_speaks_for_all(order: tuple[int, int]) -> None:
    both = (hello(2), hello(2, "layers with recurrent state"))
    scheduler = scheduler_of(*(both[i] for i in order))
    assert scheduler._core.hello is both[1]
    assert scheduler._core.why_no_injection() is Reason.PROBE_FAILED


def test_probes_that_a_rank_never_judges_are_not_kept_for_ever(half: SchedulerHalf) -> None:
    for n in range(200):
        probes(half, (f"p{n}", 0, EXACT))
    assert len(half._core.probes) <= 64


def test_orders_have_serials_of_their_own(half: SchedulerHalf) -> None:
    for n in range(3):
        begin(half, f"f{n}", ForgetOp(keys=(A, B, A)))
        begin(half, f"l{n}", LocateOp(keys=(A,)))
    sent = step(half)
    orders = (*sent.forget, *sent.locate)
    assert len({order.serial for order in orders}) == 6
    assert sent.forget[0] == Order(sent.forget[0].serial, (A, B))
