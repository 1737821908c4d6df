"""What the scheduler half believes to be in the workers, and what they really have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import connector_harness  # noqa: F401 - imports vllm, whose own warnings it switches off
import pytest
import torch

from inferscale_sdk.injection.pieces import Piece
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.protocol import (
    CaptureSpan,
    EncodeOp,
    InjectOp,
    Reason,
    SegmentRef,
    salt_suffix,
)
from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.vllm_connector.capture import Recorder
from inferscale_sdk.vllm_connector.config import ConnectorConfig
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.jobs.base import Core
from inferscale_sdk.vllm_connector.jobs.inject import InjectJob
from inferscale_sdk.vllm_connector.metadata import (
    Captured,
    CaptureStep,
    Commands,
    Forgotten,
    Loaded,
    LoadPlan,
    Order,
    Span,
    Staged,
)
from inferscale_sdk.vllm_connector.scheduler import SchedulerHalf, _Refused
from inferscale_sdk.vllm_connector.worker import WorkerHalf

KEY = make_key("a")
PROMPT = list(range(8))


def found(cls: type[Any], key: str = KEY, **given: Any) -> Any:
    first = ("r",) if cls is Captured else ()
    return cls(*first, key, n_tokens=4, token_digest="d", nbytes=100, **given)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerHalf]:
    identity: Any = SimpleNamespace(fingerprint="model", block_size=16)
    config = ConnectorConfig(disk_path=tmp_path)
    alone = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1)
    transfer = SimpleNamespace(engine_id="a server")
    vllm_config: Any = SimpleNamespace(parallel_config=alone, kv_transfer_config=transfer)
    half = WorkerHalf(config, vllm_config, identity, rank=0, world_size=1)
    yield half
    half.close()


def step(worker: WorkerHalf, **commands: Any) -> Any:
    worker.begin(Commands(**commands))
    worker.load()
    worker.end()
    return worker.take_report()


def reports(worker: WorkerHalf, name: str) -> list[Any]:
    """What comes of ``name`` in the next steps, as soon as something does."""
    for _ in range(500):
        report = step(worker, idle=True)
        if report is not None and getattr(report, name):
            return list(getattr(report, name))
        time.sleep(0.002)
    raise AssertionError(f"nothing was {name}")


def test_a_key_that_was_read_and_then_forgotten_does_not_come_back(worker: WorkerHalf) -> None:
    """The read is over, but its segment is not in memory yet: a whole forward may lie between."""
    assert worker._below is not None
    worker._below.put(make_segment("a"))
    worker._start_read(KEY)
    for _ in range(500):
        if worker._read:
            break
        time.sleep(0.002)
    assert worker._read == [(KEY, make_segment("a"))]
    report = step(worker, forget=(Order(3, (KEY,)),))
    assert KEY not in worker._resident
    assert [staged.reason for staged in report.staged] == [Reason.MISSING]
    forgotten = list(report.forgotten) or reports(worker, "forgotten")
    assert forgotten == [Forgotten(3, KEY, existed=True, failed=False)]
    assert not worker._below.contains(KEY)
    assert KEY not in worker._resident


def test_a_capture_that_ends_with_the_step_of_the_deletion_is_not_kept(worker: WorkerHalf) -> None:
    layout = SegmentLayout(n_layers=1, n_kv_heads=1, head_dim=2, dtype=torch.float32)
    device = torch.device("cpu")
    stack: Any = SimpleNamespace(
        layout=layout, block_size=16, device=device, modules=[None], has_sinks=False
    )
    worker._stack, worker._recorder = stack, Recorder(stack)
    other = make_key("b")
    spans = (Span(KEY, 0, 4, "d" * 32), Span(other, 4, 8, "d" * 32))
    rows = torch.arange(16.0).reshape(8, 1, 2)
    reported = []
    for first, last, forget in ((0, 3, ()), (3, 8, (Order(3, (KEY,)),))):
        capture = CaptureStep("encode", (0,), first, last, spans)
        worker.begin(Commands(captures=(capture,), forget=forget))
        worker._recorder.hook(0, rows[first:last], rows[first:last], torch.arange(first, last))
        worker.end()
        reported.append(worker.take_report())
    assert [one.key for one in reported[1].captured] == [other]
    assert set(worker._resident) == {other}
    assert worker._below is not None
    assert set(worker._below.keys()) == {other}


def test_a_late_answer_that_it_is_not_there_does_not_evict_what_was_captured() -> None:
    index = SegmentIndex(1000)
    assert index.fetch([KEY]) == {KEY}
    index.add(Staged(KEY, Reason.MISSING))
    assert index.add(found(Captured)) == Reason.OK
    assert index.take_commands() == ((KEY,), ())
    assert index.get(KEY) is not None


def test_a_key_that_only_some_ranks_have_is_resident_nowhere() -> None:
    index = SegmentIndex(1000)
    index.world_size = 2
    for _ in range(2):
        index.add(found(Captured))
    assert index.get(KEY) is not None
    assert index.add(found(Staged)) is None
    assert index.add(Staged(KEY, Reason.MISSING)) == Reason.MISSING
    assert index.get(KEY) is None
    assert index.stats()["used_bytes"] == 0
    assert index.take_commands()[1] == (KEY,)


def test_a_worker_names_the_keys_it_does_not_have(worker: WorkerHalf) -> None:
    worker._loader = SimpleNamespace(load=lambda plan, segments: None)  # type: ignore[assignment]
    have, lack = make_segment("have"), make_key("lack")
    worker._resident[have.key] = have
    pieces = (Piece(have.key, 0, 4, 0), Piece(lack, 0, 4, 4))
    report = step(worker, loads=(LoadPlan("r", (7,), 0, 8, pieces),))
    assert report.loaded == [Loaded("r", 0, (), Reason.MISSING, (lack,))]
    assert worker.take_failed_blocks() == {7}


def inject_job(index: SegmentIndex) -> InjectJob:
    identity: Any = SimpleNamespace(fingerprint="model")
    core = Core(ConnectorConfig(require_probe=False), identity, index)
    core.hello = SimpleNamespace(text_only_reason="")  # type: ignore[assignment]
    op = InjectOp(fingerprint="model", segments=(SegmentRef(key=KEY, n_tokens=4),))
    job = InjectJob(core, "r", PROMPT, op, f"salt:{salt_suffix([KEY])}", "model")
    assert job.ready()
    job.allocated((0,), 4)
    return job


def test_what_a_rank_does_not_have_is_not_believed_again() -> None:
    index = SegmentIndex(1000)
    index.add(found(Captured))
    job = inject_job(index)
    job.loaded(Loaded("r", 0, (), Reason.MISSING, (KEY,)))
    assert index.get(KEY) is None
    assert index.stats()["used_bytes"] == index.stats()["pinned_bytes"] == 0
    assert index.fetch([KEY]) == {KEY}
    assert index.take_commands() == ((KEY,), (KEY,))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_load_that_failed_on_one_rank_is_no_load(order: tuple[int, int]) -> None:
    index = SegmentIndex(1000)
    index.world_size = 2
    for _ in range(2):
        index.add(found(Captured))
    job = inject_job(index)
    ranks = (Loaded("r", 4, (KEY,)), Loaded("r", 0, (), Reason.LOAD_FAILED))
    for rank in order:
        job.loaded(ranks[rank])
    answer = job.answer()
    assert (answer.loaded_tokens, answer.loaded_keys) == (0, ())
    assert answer.reason is Reason.LOAD_FAILED
    assert job.core.counters.get("loaded_tokens", 0) == 0
    assert index.stats()["pinned_bytes"] == 0


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 4), (4, 8)], ""),
        ([(4, 8), (0, 4)], ""),
        ([(0, 8), (2, 4)], "captures overlap"),
        ([(3, 8), (0, 4)], "captures overlap"),
        ([(0, 4), (4, 9)], "ends at 9 but the prompt has 8"),
    ],
)
def test_captures_copy_no_more_than_the_prompt(spans: list[tuple[int, int]], message: str) -> None:
    captures = tuple(
        CaptureSpan(key=make_key(n), start=start, stop=stop)
        for n, (start, stop) in enumerate(spans)
    )
    op = EncodeOp(fingerprint="model", captures=captures)
    if not message:
        SchedulerHalf._check_captures(op, len(PROMPT))
        return
    with pytest.raises(_Refused, match=message) as refused:
        SchedulerHalf._check_captures(op, len(PROMPT))
    assert refused.value.reason is Reason.MALFORMED
