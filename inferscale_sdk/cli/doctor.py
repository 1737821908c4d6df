"""``inferscale doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_sdk.cli.options import BaseUrl, EngineChoice, EngineKind, Json
from inferscale_sdk.cli.output import out, print_json, working
from inferscale_sdk.cli.values import MODEL_TO_LOAD

if TYPE_CHECKING:
    from inferscale_sdk.cli.checks import Check

__all__ = ["doctor"]


def doctor(
    base_url: BaseUrl = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--launch",
            help="Start this model (a folder, or 'bundled') and examine it.",
            **MODEL_TO_LOAD,
        ),
    ] = None,
    engine: EngineKind = EngineChoice.VLLM,
    json: Json = False,
) -> None:
    """Say what is installed, which engine answers, whether its model can take memory, and why not.

    Of a model it says for each kind of layer how exactly its keys can be moved. Exits with 1 if
    something is broken, or the model can be served with text only.
    """
    from inferscale_sdk.cli.checks import Verdict, engine_checks, machine_checks
    from inferscale_sdk.cli.session import base_url_or_none, connect, launch_engine

    with working("Looking around"):
        found = machine_checks()
    url = base_url_or_none(base_url)
    if model is not None:
        with working(f"Starting {model}"):
            found += engine_checks(lambda: launch_engine(model, engine))
    elif url is not None:
        with working(f"Asking {url}"):
            found += engine_checks(lambda: connect(url))
    else:
        found.append(_no_engine())
    failed = any(check.verdict is Verdict.FAIL for check in found)
    if json:
        print_json({"ok": not failed, "checks": [_as_dict(check) for check in found]})
    else:
        _print(found)
    raise typer.Exit(1 if failed else 0)


def _no_engine() -> Check:
    from inferscale_sdk.cli.checks import Check, Verdict

    fix = "inferscale doctor --base-url URL, or inferscale doctor --model bundled"
    return Check("engine", Verdict.NOTE, "none asked", fix)


def _as_dict(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "verdict": check.verdict.value,
        "detail": check.detail,
        "fix": check.fix,
    }


def _print(found: list[Check]) -> None:
    from rich.text import Text

    style = {"ok": "green", "note": "yellow", "fail": "bold red"}
    console = out()
    width = max(len(check.name) for check in found)
    for check in found:
        mark = (f"{check.verdict.value:<4}", style[check.verdict.value])
        console.print(Text.assemble(mark, f"  {check.name:<{width}}  {check.detail}"))
        if check.fix:
            console.print(Text(f"      {'':<{width}}  -> {check.fix}", style="dim"))
