"""Results as Markdown tables, for terminals and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ARM_NAMES", "WAY_NAMES", "markdown", "tables_of"]

ARM_NAMES: Mapping[str, str] = {
    "prompt": "as text",
    "repeated": "as text, prefix caching, same facts again",
    "inject": "injected from host memory",
    "live": "injected but for the best fact (the default)",
    "device": "injected from the device",
    "disk": "injected from disk",
    "remote": "injected from remote",
    "cached": "ceiling",
    "mem0": "Mem0, pasted",
}

WAY_NAMES: Mapping[str, str] = {
    "kernel": "all layers at once, segments on the device",
    "kernel_from_host": "all layers at once, segments in host memory",
    "chain": "torch, layer by layer, segments on the device",
    "copy": "plain copy on the device",
    "copy_from_host": "plain copy from host memory",
}

Table = tuple[str, str]
"""Title and Markdown."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, numbers to the right."""
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables_of(result: Mapping[str, Any]) -> list[Table]:
    """All tables of one result.

    Raises:
        KeyError: It is no result of ``inferscale bench``.
    """
    makers = {
        "ttft": _ttft,
        "throughput": _throughput,
        "ingest": _ingest,
        "scale": _scale,
        "write": _write,
    }
    return makers[result["bench"]](result)


def number(value: float | None, digits: int = 0) -> str:
    """A number for people; empty if it is not there."""
    if value is None:
        return ""
    return f"{value:,.{digits}f}"


def spread(cell: Mapping[str, Any] | None, digits: int = 0) -> str:
    """Median with quartiles."""
    if not cell:
        return ""
    low, high = number(cell["p25"], digits), number(cell["p75"], digits)
    return f"{number(cell['median'], digits)} ({low}-{high})"


def _ttft(result: Mapping[str, Any]) -> list[Table]:
    cells = {arm: result["cells"][arm] for arm in ARM_NAMES if arm in result["cells"]}
    ks = sorted({k for row in cells.values() for k in row}, key=lambda k: int(k[1:]))
    head = ["arm", *(f"k={k[1:]}" for k in ks)]

    def table(name: str, digits: int) -> str:
        rows = [
            [ARM_NAMES[arm], *(spread(row.get(k, {}).get(name), digits) for k in ks)]
            for arm, row in cells.items()
        ]
        return markdown(head, rows)

    ratios = [
        [name.replace("_", " "), *(number(row.get(k), 2) for k in ks)]
        for name, row in result["ratios"].items()
    ]
    tokens = [
        [f"{ARM_NAMES[arm]}: {kind}", *(number(row.get(k, {}).get(f"{kind}_tokens")) for k in ks)]
        for arm, row in cells.items()
        for kind in ("injected", "cached", "prefilled")
        if any(row.get(k, {}).get(f"{kind}_tokens") for k in ks)
    ]
    return [
        ("Time to first token, ms: median (quartiles)", table("ttft_ms", 0)),
        ("Ratios of medians of time to first token", markdown(["ratio", *head[1:]], ratios)),
        (
            "Query to first token (recall, planning, request), ms",
            table("query_to_first_token_ms", 0),
        ),
        ("Recall and planning, ms", table("prepare_ms", 1)),
        ("Time per output token after the first (TPOT), ms", table("tpot_ms", 1)),
        ("Gaps between tokens (ITL), ms", table("itl_ms", 1)),
        ("Time to the last token (E2EL), ms", table("e2el_ms", 0)),
        ("Prompt tokens per request", markdown(["arm", *head[1:]], tokens)),
    ]


def _throughput(result: Mapping[str, Any]) -> list[Table]:
    tables: list[Table] = []
    closed = result.get("closed", [])
    if closed:
        head = ["output tokens", "users", "arm", "not computed", "requests/s", "output tokens/s",
                "TTFT ms", "TPOT ms", "E2EL ms"]  # fmt: skip
        rows = [
            [
                str(cell["output_tokens"]),
                str(cell["users"]),
                ARM_NAMES[cell["arm"]],
                f"{(cell['injected_tokens'] + cell['cached_tokens']) / cell['prompt_tokens']:.0%}",
                number(cell["requests_per_second"], 2),
                number(cell["output_tokens_per_second"], 1),
                spread(cell["ttft_ms"]),
                spread(cell.get("tpot_ms")),
                spread(cell["e2el_ms"]),
            ]
            for cell in closed
        ]
        tables.append(("Concurrent users", markdown(head, rows)))
        ratios = [
            [name, *(number(ratio, 2) for ratio in row.values())]
            for name, row in result["ratios"].items()
        ]
        names = list(next(iter(result["ratios"].values()), {}))
        tables.append(("Ratios of requests per second", markdown(["load", *names], ratios)))
    poisson = result.get("poisson", [])
    if poisson:
        head = ["arrivals/s", "arm", "TTFT ms", "p99", "within the objective", "goodput/s"]
        rows = [
            [
                number(cell["arrivals_per_second"], 2),
                ARM_NAMES[cell["arm"]],
                spread(cell["ttft_ms"]),
                number(cell["ttft_ms"]["p99"]),
                f"{cell['within_objective']:.0%}",
                number(cell["goodput_per_second"], 2),
            ]
            for cell in poisson
        ]
        title = f"Poisson arrivals, objective: first token within {result['objective_ms']:g} ms"
        tables.append((title, markdown(head, rows)))
    return tables


def _ingest(result: Mapping[str, Any]) -> list[Table]:
    head = ("encoding", "facts/s", "requests", "prompt tokens per own token")
    rows = [
        [
            cell["name"],
            spread(cell["facts_per_second"], 1),
            number(cell["requests"]),
            number(cell["prompt_tokens_per_own_token"], 1),
        ]
        for cell in result["ways"].values()
    ]
    return [("Facts made durable as KV", markdown(head, rows))]


def _scale(result: Mapping[str, Any]) -> list[Table]:
    head = ("facts in the store", "namespaces", "facts in the namespace asked", "stored/s",
            "indexed/s", "first search ms", "recall ms", "planning ms", "both ms",
            "files MiB")  # fmt: skip
    rows = [
        [
            number(cell["facts"]),
            number(cell["namespaces"]),
            number(cell["facts_in_namespace"]),
            number(cell["stored_per_second"]),
            number(cell["indexed_per_second"]),
            number(cell["first_search_ms"]),
            spread(cell["recall_ms"], 1),
            spread(cell["planning_ms"], 1),
            spread(cell["both_ms"], 1),
            number(cell["files_mib"]),
        ]
        for cell in result["sizes"]
    ]
    return [(f"Recall and planning, k={result['k']}", markdown(head, rows))]


def _write(result: Mapping[str, Any]) -> list[Table]:
    ks = list(result["mib"])
    head = ["", *(f"k={k[1:]}, {number(result['mib'][k], 1)} MiB" for k in ks)]
    cells = result["cells"]
    times = [[WAY_NAMES[w], *(spread(cells[w][k]["write_ms"], 2) for k in ks)] for w in cells]
    rates = [[WAY_NAMES[w], *(number(cells[w][k]["gb_per_second"]) for k in ks)] for w in cells]
    ratios = [
        [name.replace("_", " "), *(number(row[k], 2) for k in ks)]
        for name, row in result["ratios"].items()
    ]
    return [
        ("Until all is written, ms: median (quartiles)", markdown(head, times)),
        ("GB/s, read and written", markdown(head, rates)),
        ("Ratios of medians", markdown(head, ratios)),
    ]
