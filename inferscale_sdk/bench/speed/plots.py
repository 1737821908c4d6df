"""Results as pictures, and as one page that needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_sdk.bench.pages import html_table, write_page, write_picture
from inferscale_sdk.bench.speed.tables import ARM_NAMES, WAY_NAMES, tables_of

__all__ = ["write_plots"]


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``<bench>.png`` and ``<bench>.html``.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    name = result["bench"]
    png = write_picture(
        folder / f"{name}.png", (8, 4.6), lambda figure, axes: _draw(result, figure, axes)
    )
    tables = "".join(f"<h2>{html.escape(t)}</h2>\n{_table(md)}" for t, md in tables_of(result))
    environment = html.escape(json.dumps(result["environment"], indent=2, default=str))
    page = write_page(
        folder / f"{name}.html",
        f"inferscale bench {name}",
        png,
        before=f"<p>{html.escape(str(result['measured_at']))}</p>\n",
        after=f"{tables}<h2>Environment</h2>\n<pre>{environment}</pre>\n",
    )
    return [png, page]


def _draw(result: Mapping[str, Any], figure: Any, axes: Any) -> None:
    drawers = {
        "ttft": _ttft,
        "throughput": _throughput,
        "ingest": _ingest,
        "scale": _scale,
        "write": _write,
    }
    drawers[result["bench"]](result, axes)
    environment = result["environment"]
    figure.suptitle(f"{environment['cpu']}, {environment['cores']} cores", fontsize=9)


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


def _write(result: Mapping[str, Any], axes: Any) -> None:
    for way, row in result["cells"].items():
        points = sorted((int(k[1:]), cell["write_ms"]["median"]) for k, cell in row.items())
        axes.plot(*zip(*points, strict=True), marker="o", ms=4, label=WAY_NAMES[way])
    axes.set_yscale("log")
    axes.set_xlabel("facts")
    axes.set_ylabel("ms until all is written")
    axes.legend(fontsize=7)


def _table(markdown: str) -> str:
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines()]
    return html_table(lines[0], lines[2:])
