"""A report as pictures, and as one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferscale_sdk.bench.pages import html_table, write_page, write_picture
from inferscale_sdk.bench.quality.report import QualityReport, Row

__all__ = ["write_plots"]

_HEADS = ("arm", "k", "evidence", "n", "useful information", "95 %", "NLL", "KL", "prefilled")


def write_plots(report: QualityReport, folder: Path) -> list[Path]:
    """Write ``quality.png`` and ``quality.html``.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    cells = list(dict.fromkeys((row.k, row.evidence) for row in report.rows))
    arms = [arm for arm in report.overall if arm not in ("prompt", "other")]
    png = write_picture(
        folder / "quality.png",
        (8, 1.2 + 0.28 * len(arms) * len(cells)),
        lambda figure, axes: _draw(report, cells, arms, figure, axes),
    )
    page = write_page(
        folder / "quality.html",
        f"Answer quality: {report.model}",
        png,
        after=html_table(_HEADS, map(_line, report.rows)),
    )
    return [png, page]


def _draw(
    report: QualityReport, cells: list[tuple[int, str]], arms: list[str], figure: Any, axes: Any
) -> None:
    height = 0.8 / len(cells)
    for number, cell in enumerate(cells):
        rows = {row.arm: row for row in report.rows if (row.k, row.evidence) == cell}
        shown = [(place, rows[arm].kept) for place, arm in enumerate(arms) if arm in rows]
        values = [kept.value for _, kept in shown]
        axes.barh(
            [place + number * height for place, _ in shown],
            values,
            height=height,
            xerr=[
                [max(0.0, kept.value - kept.low) for _, kept in shown],
                [max(0.0, kept.high - kept.value) for _, kept in shown],
            ],
            label=f"k={cell[0]}, {cell[1]}",
            error_kw={"lw": 0.8},
        )
    axes.set_yticks([place + height * (len(cells) - 1) / 2 for place in range(len(arms))], arms)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", lw=1)
    axes.axvline(0.0, color="grey", lw=0.5)
    axes.set_xlabel("useful information kept (1 = full prompt, 0 = another memory), 95 % interval")
    axes.set_title(f"{report.model}, {report.dtype}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(cells), fontsize=8)


def _line(row: Row) -> tuple[str, ...]:
    kept = row.kept
    return (
        row.arm,
        str(row.k),
        row.evidence,
        str(kept.n),
        f"{kept.value:.3f}",
        f"{kept.low:.2f} to {kept.high:.2f}",
        f"{row.nll:.3f}",
        f"{row.kl:.3f}",
        f"{row.prefilled_tokens:.0f}",
    )
