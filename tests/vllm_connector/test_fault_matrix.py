"""Every fault inside the server: the engine lives, the answer is right, nothing stays pinned.

Each case is one cell of the table in ``docs/reliability.md``. What it ended as is found out by
comparison with two references, the plain prompt's answer and the exact injected one. The cases
stand in ``fault_cases_*.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import fault_cases_load  # noqa: F401
import fault_cases_remote  # noqa: F401
import fault_cases_requests  # noqa: F401
import fault_cases_store  # noqa: F401 - each fills the list of cases, in the order of the table
import pytest
from _pytest.mark import ParameterSet
from connector_harness import Harness, Outcome
from fault_scene import CASES, EXACT, N_ANSWER, N_MEMORY, WIDTH, Case, Scene, injected_tokens

from inferscale_sdk.testing.fault_matrix import FaultCell, FaultOutcome
from inferscale_sdk.testing.redis_server import BINARIES, RedisServer, find_redis, running_redis

# Of these parts a few stand for their like in ``make test``; ``make reliability`` runs all.
STAND_FOR_ALL = {
    "segment file": {
        "a bit of the tensor flipped",
        "cut in half",
        "deleted by someone",
        "another model's file under its name",
        "right name and model, other tokens",
    },
    "request": {
        "an unknown field",
        "another model's fingerprint",
        "a salt bound to other segments",
        "segments of another prompt",
    },
}


def as_parameter(cell: Case) -> ParameterSet:
    chosen = STAND_FOR_ALL.get(cell.part)
    return pytest.param(
        cell,
        id=f"{cell.part}: {cell.fault} ({cell.stage})".replace("/", "-"),
        marks=[] if chosen is None or cell.fault in chosen else [pytest.mark.slow],
    )


@pytest.fixture(scope="module")
def references(harness: Harness) -> tuple[list[int], Outcome, Outcome]:
    lines = (
        f"- On day {i} Anna walked {3 * i + 2} kilometres along the river to house {i * 7 % 31}.\n"
        for i in range(40)
    )
    prompt = harness.encode_text("".join(lines))[: N_MEMORY + 30]
    bounds = [(i, i + WIDTH) for i in range(0, N_MEMORY, WIDTH)]
    keys = harness.encode(prompt[:N_MEMORY], bounds, tag="reference")
    segments = [(key, WIDTH) for key in keys]
    plain = harness.ask(prompt, n=N_ANSWER, logprobs=3)
    exact = harness.inject(prompt, segments, n=N_ANSWER, logprobs=3)
    assert exact.n_cached == N_MEMORY
    return prompt, plain, exact


@pytest.fixture(scope="module")
def redis(tmp_path_factory) -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip(f"none of {', '.join(BINARIES)} is installed")
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def scene(harness, references, request, monkeypatch) -> Iterator[Scene]:
    prompt, plain, exact = references
    found = Scene(
        harness, prompt, plain, exact, [], monkeypatch, lambda: request.getfixturevalue("redis")
    )
    tag = hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    found.encode_again(tag)
    before = harness.free_blocks()
    yield found
    monkeypatch.undo()
    # Whatever happened: nothing is pinned or left over, and the engine injects as before.
    assert harness.leftovers() == []
    assert harness.free_blocks() == before
    found.encode_again(tag + "-after")
    assert found.outcome(found.ask()) is EXACT


@pytest.mark.parametrize("cell", [as_parameter(cell) for cell in CASES])
def test_cell(cell: Case, scene: Scene, record_fault) -> None:
    out = cell.run(scene)
    outcome = scene.outcome(out)
    if scene.harness.leftovers():
        outcome = FaultOutcome.LEAK
    answer = out.answer or {}
    reason = answer.get("reason") or ""
    record_fault(
        FaultCell(
            cell.part, cell.fault, cell.stage, outcome, injected_tokens(out), N_MEMORY, reason
        )
    )
    assert outcome is cell.expect, (outcome, out.answer, scene.harness.leftovers())
    if cell.reason is not None:
        assert reason == cell.reason.value, answer
