"""What became of each fault: the outcomes that are allowed, their record, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["FaultCell", "FaultOutcome", "append_cell", "read_cells", "render_table"]


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
    cells = sorted(cells, key=lambda cell: cell.part)
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
