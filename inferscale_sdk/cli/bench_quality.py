"""``inferscale bench quality``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_sdk.cli.listening import Progress
from inferscale_sdk.cli.options import Json, Model, Plots, Seed
from inferscale_sdk.cli.output import err, out, print_json
from inferscale_sdk.cli.values import COUNT, folder_to_make, whole

if TYPE_CHECKING:
    from inferscale_sdk.bench.quality.report import QualityReport, Row
    from inferscale_sdk.bench.quality.statistics import Interval

__all__ = ["quality"]

DEFAULT_ARMS = ["default", "w0", "w20", "w50", "again", "none"]


class EvidenceChoice(StrEnum):
    """Which facts the model is given."""

    NATURAL = "natural"
    GUARANTEED = "guaranteed"
    BOTH = "both"


class UnitChoice(StrEnum):
    """What counts as a fact."""

    OBSERVATIONS = "observations"
    PAIRS = "pairs"
    TURNS = "turns"


def quality(
    data: Annotated[Path, typer.Option(help="Conversations and questions in LoCoMo's shape.")],
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="What to measure beside the full prompt and another memory; may be repeated. "
            "E.g. default, w20, related5, related5+3/live3.",
            show_default=" ".join(DEFAULT_ARMS),
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            help="Facts given to the model; may be repeated.", show_default="20", **whole(1, COUNT)
        ),
    ] = None,
    evidence: Annotated[
        EvidenceChoice, typer.Option(help="Facts as recalled, or with the evidence among them.")
    ] = EvidenceChoice.NATURAL,
    conversations: Annotated[
        int, typer.Option(help="The first so many; 0 for all.", **whole(0, COUNT))
    ] = 0,
    questions: Annotated[
        int,
        typer.Option(
            help="So many of each conversation, drawn at random; 0 for all.", **whole(0, COUNT)
        ),
    ] = 20,
    unit: Annotated[
        UnitChoice, typer.Option(help="What counts as a fact.")
    ] = UnitChoice.OBSERVATIONS,
    answers: Annotated[
        bool, typer.Option("--answers", help="Let the model answer, too, and score that; slow.")
    ] = False,
    model: Model = None,
    dtype: Annotated[
        str | None, typer.Option(help="What to compute in.", show_default="that of the weights")
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Threads to compute with; 0 leaves it to torch.", **whole(0, 1024))
    ] = 0,
    seed: Seed = 0,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Results so far; a stopped run goes on there.",
            show_default="bench/quality under INFERSCALE_HOME",
            parser=folder_to_make,
            metavar="FOLDER",
        ),
    ] = None,
    plots: Plots = None,
    json: Json = False,
) -> None:
    """Compare answers with injected memory to answers with the same facts as prompt text.

    Useful information kept is (NLL(other) - NLL(arm)) / (NLL(other) - NLL(prompt)) of the golden
    answers: 1 is as good as the full prompt, 0 as bad as other facts of the same store.
    """
    import torch

    from inferscale_sdk.bench.quality.report import summarise
    from inferscale_sdk.bench.quality.run import QualityOptions, QualityRun
    from inferscale_sdk.config import settings
    from inferscale_sdk.models import BUNDLED_MODEL, bundled_model_path
    from inferscale_sdk.recall.embedders import bundled_embedder

    if threads:
        torch.set_num_threads(threads)
    source = model or str(bundled_model_path())
    options = QualityOptions(
        data=data,
        model=source,
        work=work or settings().home / "bench" / "quality",
        arms=tuple(arm or DEFAULT_ARMS),
        ks=tuple(k or [20]),
        evidence=("natural", "guaranteed")
        if evidence is EvidenceChoice.BOTH
        else ("guaranteed" if evidence is EvidenceChoice.GUARANTEED else "natural",),
        unit=unit.value,
        conversations=conversations,
        questions=questions,
        answers=answers,
        dtype=dtype,
        seed=seed,
    )
    measured = QualityRun(options, bundled_embedder(), Progress()).run()
    name = BUNDLED_MODEL if model is None else Path(model).name
    report = summarise(measured, model=name, data=data.name, seed=seed)
    if plots is not None:
        from inferscale_sdk.bench.quality.plots import write_plots

        for path in write_plots(report, plots):
            err().print(f"written: {path}", markup=False)
    if json:
        print_json(report.as_dict())
    else:
        _print(report)


def _print(report: QualityReport) -> None:
    from rich import box
    from rich.table import Table

    title = f"{report.model} ({report.dtype}) on {report.data}: useful information kept"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="")
    for column in ("arm", "facts"):
        table.add_column(column)
    for column in ("n", "kept", "95 %", "worst", "NLL", "KL", "prefilled", "F1", "recall"):
        table.add_column(column, justify="right")
    for row in report.rows:
        table.add_row(*_cells(row))
    out().print(table)
    for arm, kept in report.overall.items():
        parts = ", ".join(f"{n} {i.value:.2f}" for n, i in report.by_conversation[arm].items())
        mean = f"mean of conversations {_interval(report.mean_of_conversations[arm])}"
        shown = f"{arm}, all choices of facts: {_interval(kept)}; {mean}: {parts}"
        out().print(shown, markup=False)
    categories = {row.arm: row for row in report.rows}
    for arm, row in categories.items():
        parts = ", ".join(
            f"{name} {value:.2f} (n={n})" for name, (value, n) in row.by_category.items()
        )
        out().print(f"{arm}, k={row.k} {row.evidence}: {parts}", markup=False)
    for arm, ratio in report.encoding.items():
        out().print(f"{arm}: {ratio:.1f} prompt tokens per token encoded", markup=False)


def _interval(kept: Interval) -> str:
    return f"{kept.value:.3f} ({kept.low:.2f} to {kept.high:.2f})"


def _cells(row: Row) -> list[str]:
    kept = row.kept
    return [
        row.arm,
        f"k={row.k} {row.evidence}",
        str(kept.n),
        f"{kept.value:.3f}",
        f"{kept.low:.2f} to {kept.high:.2f}",
        f"{min(row.by_conversation.values()):.2f}",
        f"{row.nll:.3f}",
        f"{row.kl:.3f}",
        f"{row.prefilled_tokens:.0f}",
        "" if row.f1 is None else f"{row.f1:.3f}",
        "" if row.recall is None else f"{row.recall:.3f}",
    ]
