"""A report as pictures, and as one page that needs nothing else."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from inferscale_sdk.bench.quality.report import QualityReport, Row
from inferscale_sdk.errors import MissingDependency

__all__ = ["write_plots"]


def write_plots(report: QualityReport, folder: Path) -> list[Path]:
    """Write ``quality.png`` and ``quality.html``.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    png, page = folder / "quality.png", folder / "quality.html"
    _draw(report, png)
    page.write_text(_page(report, png.read_bytes()))
    return [png, page]


def _draw(report: QualityReport, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "plots") from None
    cells = list(dict.fromkeys((row.k, row.evidence) for row in report.rows))
    arms = [arm for arm in report.overall if arm not in ("prompt", "other")]
    figure: Any = Figure(figsize=(8, 1.2 + 0.28 * len(arms) * len(cells)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
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
    figure.savefig(path, dpi=130)


def _page(report: QualityReport, png: bytes) -> str:
    picture = base64.b64encode(png).decode()
    heads = ("arm", "k", "evidence", "n", "useful information", "95 %", "NLL", "KL", "prefilled")
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "\n".join(_line(row) for row in report.rows)
    title = html.escape(f"Answer quality: {report.model}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font:15px system-ui;margin:2em;max-width:60em}"
        "td,th{padding:.2em .7em;text-align:right}td:first-child{text-align:left}</style>\n"
        f'<h1>{title}</h1>\n<img alt="bars" style="max-width:100%" '
        f'src="data:image/png;base64,{picture}">\n'
        f"<table><tr>{head}</tr>\n{body}\n</table></html>\n"
    )


def _line(row: Row) -> str:
    kept = row.kept
    cells = (
        html.escape(row.arm),
        str(row.k),
        row.evidence,
        str(kept.n),
        f"{kept.value:.3f}",
        f"{kept.low:.2f} to {kept.high:.2f}",
        f"{row.nll:.3f}",
        f"{row.kl:.3f}",
        f"{row.prefilled_tokens:.0f}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
