"""What became of each fault: the outcomes that are allowed, their record, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

__all__ = [
    "FIELD_FAULTS",
    "FaultCell",
    "FaultOutcome",
    "append_cell",
    "read_cells",
    "render_field_faults",
    "render_table",
]

FIELD_FAULTS = {
    1: "connector keys ignore salt and LoRA; a negative count of matched tokens (vllm #53495)",
    2: "recompute answers wrongly after a rejected synchronous load (vllm #49250)",
    3: "an assertion fails when a preempted request comes back (vllm #46014)",
    4: "an abort during a transfer ends the engine or leaks blocks (vllm #43226, PR 32255)",
    5: "short prompts with chunked prefill crash a connector (vllm #33092)",
    6: "the prefix cache is polluted within one step (vllm PR 37152)",
    7: "injection overlaps a native prefix hit (LMCache #2206, #3229)",
    8: "a salt is dropped; timing across tenants (LMCache #2878, #4825, sglang #37160)",
    9: "separators and BOS are tokenised otherwise, so nothing ever hits (LMCache #1136, PR 3228)",
    10: "hash seeds differ between processes and ranks (LMCache #1139, #2136)",
    11: "keys are not rotated again; llama3 scaling ignored (MemOS #2315)",
    12: "KV is used under another model, dtype or tenant (MemOS #2300, lmdeploy #4930)",
    13: "fp8 bytes are read as another dtype (TensorRT-LLM #2699, vllm PR 54338)",
    14: "namespaces collide by prefix or join (langgraphjs #2721, memanto PR 1317)",
    15: "memory is pinned to the first session (llama_index #22701)",
    16: "memory text destroys prefix hits in a long chat (hermes-agent #25971)",
    17: "adding costs more the more is known (mem0 #5850, #3097)",
    18: "allocators and locks leak (LMCache #1285, #955, vllm PR 35931)",
}
"""Faults that users of such systems met, by number; tests carry them as ``field_fault(number)``."""


class FaultOutcome(StrEnum):
    """How a request ended while something was broken. The last three must never happen."""

    EXACT = "answered exactly"
    TEXT = "answered as text"
    ERROR = "clear error"
    WRONG = "wrong answer"
    DIED = "engine died"
    LEAK = "leak"

    @property
    def is_allowed(self) -> bool:
        """Whether a user may meet it."""
        return self in {FaultOutcome.EXACT, FaultOutcome.TEXT, FaultOutcome.ERROR}


@dataclass(frozen=True, slots=True)
class FaultCell:
    """One fault at one stage, and what came of it.

    Args:
        part: What broke: a tier, the server's process, the client, the protocol…
        fault: What went wrong there.
        stage: When.
        outcome: How the request ended.
        injected_tokens: Tokens taken from stored KV all the same.
        memory_tokens: Tokens of memory in the prompt.
        reason: The reason that the report names, or the error's type.
    """

    part: str
    fault: str
    stage: str
    outcome: FaultOutcome
    injected_tokens: int = 0
    memory_tokens: int = 0
    reason: str = ""


def append_cell(path: Path, cell: FaultCell) -> None:
    """Add a cell to a record: one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(cell)) + "\n")


def read_cells(path: Path) -> list[FaultCell]:
    """A record's cells, the latest of each (part, fault, stage), in the order first written."""
    cells: dict[tuple[str, str, str], FaultCell] = {}
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        cell = FaultCell(**{**fields, "outcome": FaultOutcome(fields["outcome"])})
        cells[cell.part, cell.fault, cell.stage] = cell
    return list(cells.values())


def render_table(cells: Iterable[FaultCell]) -> str:
    """The cells as a Markdown table, with a line that counts the outcomes."""
    cells = sorted(cells, key=lambda cell: (cell.part, cell.fault, cell.stage))
    counts = {outcome: sum(cell.outcome is outcome for cell in cells) for outcome in FaultOutcome}
    shown = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    rows = [
        f"{len(cells)} cells: {shown}.",
        "",
        "| what breaks | how | when | outcome | memory tokens injected | reason reported |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        share = f"{cell.injected_tokens} of {cell.memory_tokens}" if cell.memory_tokens else "–"
        rows.append(
            f"| {cell.part} | {cell.fault} | {cell.stage} | **{cell.outcome.value}** "
            f"| {share} | {cell.reason or '–'} |"
        )
    return "\n".join(rows) + "\n"


def render_field_faults(tests: Mapping[int, Iterable[str]]) -> str:
    """The faults of the field as a Markdown table, each with the names of its tests."""
    rows = ["| number | fault | tests |", "|---|---|---|"]
    for number, fault in FIELD_FAULTS.items():
        names = ", ".join(f"`{name}`" for name in sorted(tests[number]))
        rows.append(f"| {number} | {fault} | {names} |")
    return "\n".join(rows) + "\n"
