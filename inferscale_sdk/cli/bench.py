"""``inferscale bench``: measurements."""

from __future__ import annotations

import typer

from inferscale_sdk.cli import bench_quality, bench_speed, bench_speed_load

__all__ = ["app"]

app = typer.Typer(help="Measure what memory costs and what it is worth.", no_args_is_help=True)
app.command("quality")(bench_quality.quality)
app.command("ttft")(bench_speed.ttft)
app.command("throughput")(bench_speed_load.throughput)
app.command("ingest")(bench_speed_load.ingest)
app.command("scale")(bench_speed_load.scale)
app.command("write")(bench_speed_load.write)
app.command("compare")(bench_speed.compare)
