"""Results as pictures, and as one page that needs nothing else."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_sdk.bench.speed.tables import ARM_NAMES, tables_of
from inferscale_sdk.errors import MissingDependency

__all__ = ["write_plots"]

_STYLE = (
    "body{font:15px system-ui;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}pre{overflow:auto}"
)


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``<bench>.png`` and ``<bench>.html``.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    png, page = folder / f"{result['bench']}.png", folder / f"{result['bench']}.html"
    _draw(result, png)
    page.write_text(_page(result, png.read_bytes()), encoding="utf-8")
    return [png, page]


def _draw(result: Mapping[str, Any], path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "plots") from None
    figure: Any = Figure(figsize=(8, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    drawers = {"ttft": _ttft, "throughput": _throughput, "ingest": _ingest, "scale": _scale}
    drawers[result["bench"]](result, figure.subplots())
    environment = result["environment"]
    figure.suptitle(f"{environment['cpu']}, {environment['cores']} cores", fontsize=9)
    figure.savefig(path, dpi=130)


def _ttft(result: Mapping[str, Any], axes: Any) -> None:
    for arm, row in result["cells"].items():
        points = sorted((int(k[1:]), cell["ttft_ms"]) for k, cell in row.items())
        ks = [k for k, _ in points]
        medians = [s["median"] for _, s in points]
        bars = [
            [s["median"] - s["p25"] for _, s in points],
            [s["p75"] - s["median"] for _, s in points],
        ]
        axes.errorbar(ks, medians, yerr=bars, marker="o", ms=4, capsize=2, label=ARM_NAMES[arm])
    axes.set_yscale("log")
    axes.set_xlabel("recalled facts (k)")
    axes.set_ylabel("ms to first token, median and quartiles")
    axes.legend(fontsize=8)


def _throughput(result: Mapping[str, Any], axes: Any) -> None:
    for arm in dict.fromkeys(cell["arm"] for cell in result["closed"]):
        for tokens in result["output_tokens"]:
            points = sorted(
                (cell["users"], cell["requests_per_second"])
                for cell in result["closed"]
                if (cell["arm"], cell["output_tokens"]) == (arm, tokens)
            )
            label = f"{ARM_NAMES[arm]}, {tokens} output tokens"
            axes.plot(*zip(*points, strict=True), marker="o", ms=4, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("concurrent users")
    axes.set_ylabel("requests per second")
    axes.legend(fontsize=7)


def _ingest(result: Mapping[str, Any], axes: Any) -> None:
    ways = list(result["ways"].values())
    spreads = [way["facts_per_second"] for way in ways]
    axes.bar([way["name"] for way in ways], [s["median"] for s in spreads])
    axes.set_ylabel("facts per second, durable")


def _scale(result: Mapping[str, Any], axes: Any) -> None:
    sizes = result["sizes"]
    for name in ("recall_ms", "planning_ms", "both_ms"):
        axes.plot(
            [size["facts"] for size in sizes],
            [size[name]["median"] for size in sizes],
            marker="o",
            label=name.removesuffix("_ms"),
        )
    axes.set_xscale("log")
    axes.set_xlabel("facts in the store")
    axes.set_ylabel("ms")
    axes.legend(fontsize=8)


def _page(result: Mapping[str, Any], png: bytes) -> str:
    picture = base64.b64encode(png).decode()
    title = html.escape(f"inferscale bench {result['bench']}")
    tables = "\n".join(f"<h2>{html.escape(t)}</h2>\n{_table(md)}" for t, md in tables_of(result))
    environment = html.escape(json.dumps(result["environment"], indent=2, default=str))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n"
        f"<p>{html.escape(str(result['measured_at']))}</p>\n"
        f'<img alt="plot" src="data:image/png;base64,{picture}">\n{tables}\n'
        f"<h2>Environment</h2>\n<pre>{environment}</pre>\n</html>\n"
    )


def _table(markdown: str) -> str:
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines()]
    head, body = lines[0], lines[2:]
    rows = [_row(head, "th"), *(_row(cells, "td") for cells in body)]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
