"""``inferscale bench``: measurements."""

from __future__ import annotations

import typer

from inferscale_sdk.cli import bench_quality

__all__ = ["app"]

app = typer.Typer(help="Measure what memory costs and what it is worth.", no_args_is_help=True)
app.command("quality")(bench_quality.quality)
