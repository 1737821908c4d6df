"""Tables of results in a Markdown page, kept up to date by a command.

Between ``<!-- bench NAME -->`` and ``<!-- end -->`` stand the tables of ``NAME.json`` in the folder
of results. ``python -m inferscale_sdk.bench.speed.page PAGE FOLDER`` writes them anew, and the
plots beside the results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferscale_sdk.bench.speed.compare import load_result
from inferscale_sdk.bench.speed.plots import write_plots
from inferscale_sdk.bench.speed.tables import tables_of

__all__ = ["filled", "measured_on"]

_BLOCK = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, folder: Path) -> str:
    """The page with the tables of the results in ``folder``.

    Raises:
        ConfigurationError: A result that the page names is not there.
    """

    def block(match: re.Match[str]) -> str:
        result = load_result(folder / f"{match[2]}.json")
        tables = "\n\n".join(f"**{title}**\n\n{table}" for title, table in tables_of(result))
        return f"{match[1]}{measured_on(result)}\n\n{tables}\n{match[3]}"

    return _BLOCK.sub(block, page)


def measured_on(result: Mapping[str, Any]) -> str:
    """One sentence on when and on what a result was measured."""
    machine, server = result["environment"], result["environment"]["server"]
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores",
        machine["gpu"] or "no GPU",
        f"load average {machine['load_average']:g} at the end",
    ]
    if server:
        parts.append(f"vLLM {server.get('vllm', '?')}, {server['model']}, {server['dtype']}")
    if "proved" in result:
        parts.append(
            f"{result['injected_tokens']:,} tokens injected, "
            f"{result['external_hits_delta']:,} counted by vLLM"
        )
    return f"Measured {result['measured_at'][:10]} on {'; '.join(parts)}."


def _main(argv: Sequence[str]) -> None:
    page, folder = Path(argv[1]), Path(argv[2])
    page.write_text(filled(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    for path in sorted(folder.glob("*.json")):
        for made in write_plots(load_result(path), folder / "plots"):
            target = folder / f"{path.stem}{made.suffix}"
            made.replace(target)
            sys.stdout.write(f"{target}\n")
    (folder / "plots").rmdir()


if __name__ == "__main__":
    _main(sys.argv)
