"""``inferscale kv``: the stored keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferscale_sdk.cli.options import BaseUrl, Json
from inferscale_sdk.cli.output import out, print_json

__all__ = ["app"]

app = typer.Typer(help="Stored KV: how much there is, where, and how often it is used.")


@app.callback()
def _group() -> None:
    """Keep ``stats`` a subcommand of its own."""


@app.command("stats")
def stats(
    base_url: BaseUrl = None,
    path: Annotated[
        Path | None,
        typer.Option("--path", help="Look into this folder instead of asking a server."),
    ] = None,
    json: Json = False,
) -> None:
    """Show tiers and counters of a running server, or what lies in the KV folder."""
    from inferscale_sdk.cli.session import base_url_or_none, connect, kv_folder

    url = None if path is not None else base_url_or_none(base_url)
    if url is None:
        found: dict[str, Any] = _folder_stats(path or kv_folder())
    else:
        with connect(url) as engine:
            answer = engine.stats()
        found = {"server": url, "tiers": answer.tiers, "counters": answer.counters}
    if json:
        print_json(found)
    else:
        _print(found)


def _folder_stats(folder: Path) -> dict[str, Any]:
    """Counts files only, so that it needs no torch and disturbs no server."""
    from inferscale_sdk.tiers import files

    models: dict[str, dict[str, int]] = {}
    for shard in files.shard_folders(folder) if folder.is_dir() else []:
        found = list(files.scan(shard))
        models[f"{shard.parent.name}/{shard.name}"] = {
            "segments": len(found),
            "bytes": sum(entry.nbytes for entry in found),
        }
    return {"folder": str(folder), "models": models}


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table

    console = out()
    console.print(found.get("server") or found["folder"], markup=False)
    for title in ("models", "tiers", "counters"):
        rows = found.get(title) or {}
        if not rows:
            continue
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in rows.items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            table.add_row(name, ", ".join(f"{k} {v}".strip() for k, v in parts))
        console.print(table)
    if not any(found.get(title) for title in ("models", "tiers", "counters")):
        console.print("no segments")
