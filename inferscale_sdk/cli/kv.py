"""``inferscale kv``: the stored keys and values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from inferscale_sdk.cli.options import BaseUrl, Json, StoreThere
from inferscale_sdk.cli.output import out, print_figures, print_json, working
from inferscale_sdk.cli.values import existing_folder, number
from inferscale_sdk.facts.base import FACTS_FILE

__all__ = ["app"]

app = typer.Typer(
    help="Stored KV: how much there is, whether it is whole, and what nobody needs.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="Look into this folder instead of asking a server.",
        parser=existing_folder,
        metavar="FOLDER",
    ),
]
_DAY_SECONDS = 86_400.0


@app.command("stats")
def stats(
    base_url: BaseUrl = None,
    path: Folder = None,
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


@app.command()
def verify(
    path: Annotated[
        Path | None,
        typer.Option(
            "--path",
            help="The folder.",
            show_default="under INFERSCALE_HOME",
            parser=existing_folder,
            metavar="FOLDER",
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged files aside; they are encoded again.")
    ] = False,
    json: Json = False,
) -> None:
    """Read every stored segment and check it; exit code 1 if one is damaged and stays."""
    from inferscale_sdk.cli.session import kv_folder
    from inferscale_sdk.kv.cipher import configured_cipher
    from inferscale_sdk.tiers import folder

    root = path or kv_folder()
    cipher = configured_cipher()
    n, nbytes, damaged = 0, 0, []
    with working("Checking"):
        for entry in folder.segments(root):
            n, nbytes = n + 1, nbytes + entry.nbytes
            damage = folder.verify(entry, root, cipher=cipher, repair=repair)
            if damage is not None:
                damaged.append(damage)
    bad = [
        {
            "file": str(damage.segment.path),
            "key": damage.segment.key,
            "reason": damage.reason,
            "unknown": damage.unknown,
            "set_aside": damage.set_aside,
        }
        for damage in damaged
    ]
    if json:
        print_json({"folder": str(root), "segments": n, "bytes": nbytes, "damaged": bad})
    else:
        out().print(f"{root}: {n} segments, {nbytes} bytes, {len(bad)} damaged", markup=False)
        for entry_ in bad:
            done = "set aside" if entry_["set_aside"] else "left in place"
            out().print(f"{entry_['file']}: {entry_['reason']} ({done})", markup=False)
    if any(not damage.set_aside for damage in damaged):
        raise typer.Exit(1)


@app.command()
def gc(
    store: StoreThere = None,
    base_url: BaseUrl = None,
    path: Folder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    grace_hours: Annotated[
        float,
        typer.Option(help="Younger captures may still be under way.", **number(0, 87_600)),
    ] = 1.0,
    remove_unknown: Annotated[
        bool,
        typer.Option(
            "--remove-unknown",
            help="Also remove segments this memory does not know. They may be another memory's, "
            "which would encode them again.",
        ),
    ] = False,
    unused_days: Annotated[
        float,
        typer.Option(
            help="With --remove-unknown: only if unused for so long.", **number(0, 36_500)
        ),
    ] = 30.0,
    json: Json = False,
) -> None:
    """Drop KV that no fact of a memory needs, and note what is gone so that it is encoded again."""
    from dataclasses import asdict

    from inferscale_sdk.cli.session import base_url_or_none, connect, kv_folder, memory_there
    from inferscale_sdk.facts.sqlite import SQLiteFactStore
    from inferscale_sdk.kv.cipher import configured_cipher
    from inferscale_sdk.memory.collecting import collect_folder, collect_server

    facts = memory_there(store) / FACTS_FILE
    url = None if path is not None else base_url_or_none(base_url)
    if url is not None and remove_unknown:
        raise typer.BadParameter("a server does not list its segments; give --path with its folder")
    with closing(SQLiteFactStore(facts)) as ledger, working("Comparing"):
        if url is not None:
            with connect(url) as engine:
                report = collect_server(
                    ledger, engine, dry_run=dry_run, grace_seconds=grace_hours * 3600
                )
        else:
            report = collect_folder(
                ledger,
                path or kv_folder(),
                dry_run=dry_run,
                grace_seconds=grace_hours * 3600,
                unused_seconds=unused_days * _DAY_SECONDS if remove_unknown else None,
                cipher=configured_cipher(),
            )
    if json:
        print_json({"where": url or str(path or kv_folder()), "dry_run": dry_run, **asdict(report)})
        return
    out().print(url or str(path or kv_folder()), markup=False)
    print_figures(asdict(report))


def _folder_stats(folder: Path) -> dict[str, Any]:
    """Counts files only, so that it needs no torch and disturbs no server."""
    from inferscale_sdk.errors import StoreError
    from inferscale_sdk.tiers import files

    models: dict[str, dict[str, int]] = {}
    try:
        for shard in files.shard_folders(folder):
            found = list(files.scan(shard))
            models[f"{shard.parent.name}/{shard.name}"] = {
                "segments": len(found),
                "bytes": sum(entry.nbytes for entry in found),
            }
    except OSError as error:
        raise StoreError(f"{folder} cannot be listed: {error}; mend its permissions") from error
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
