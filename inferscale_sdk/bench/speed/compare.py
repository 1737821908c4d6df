"""Two results of one command side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferscale_sdk.bench.speed.tables import markdown
from inferscale_sdk.errors import ConfigurationError

__all__ = ["compare_results", "compare_table", "load_result"]

_SPREAD = frozenset({"median", "p25", "p75"})
_APART = ("environment", "seconds", "measured_at", "version")


def load_result(path: Path) -> dict[str, Any]:
    """A result as a command with ``--json`` wrote it.

    Raises:
        ConfigurationError: The file is none.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(result, dict) or "environment" not in result or "bench" not in result:
        raise ConfigurationError(
            f"{path} is no result; make one with `inferscale bench ttft --json > {path.name}`"
        )
    return result


def compare_results(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Every figure that both have, and how the second relates to the first.

    A change counts as seen only where the quartiles do not overlap; one without quartiles (a
    ratio, a rate) is reported and left to the reader.

    Raises:
        ConfigurationError: They are results of different commands.
    """
    if old["bench"] != new["bench"]:
        raise ConfigurationError(
            f"a result of bench {old['bench']} cannot be compared to one of bench {new['bench']}"
        )
    before, after = dict(_figures(old, "")), dict(_figures(new, ""))
    figures = {name: _pair(before[name], after[name]) for name in before if name in after}
    return {
        "bench": old["bench"],
        "environment_changed": _changed(old["environment"], new["environment"]),
        "figures": figures,
        "only_first": sorted(before.keys() - after.keys()),
        "only_second": sorted(after.keys() - before.keys()),
    }


def compare_table(comparison: Mapping[str, Any]) -> str:
    """The comparison as a Markdown table."""
    rows = [
        [
            name,
            f"{figure['first']:g}",
            f"{figure['second']:g}",
            "" if figure["ratio"] is None else f"{figure['ratio']:.3f}",
            {True: "yes", False: "no", None: ""}[figure["apart"]],
        ]
        for name, figure in comparison["figures"].items()
    ]
    return markdown(["figure", "first", "second", "second/first", "quartiles apart"], rows)


def _figures(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Numbers and spreads with their paths; lists are told apart by what stands in them."""
    if isinstance(value, Mapping):
        if value.keys() >= _SPREAD:
            yield name, value
            return
        for key, inner in value.items():
            if name or key not in _APART:
                yield from _figures(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _figures(inner, f"{name}[{_label(inner, place)}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _label(inner: Any, place: int) -> str:
    if not isinstance(inner, Mapping):
        return str(place)
    keys = ("arm", "users", "output_tokens", "arrivals_per_second", "facts")
    return ",".join(str(inner[key]) for key in keys if key in inner) or str(place)


def _pair(first: Any, second: Any) -> dict[str, Any]:
    apart = None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        apart = first["p75"] < second["p25"] or second["p75"] < first["p25"]
        first, second = first["median"], second["median"]
    ratio = second / first if first else None
    return {"first": first, "second": second, "ratio": ratio, "apart": apart}


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between two machines, load aside."""
    return {
        name: [first.get(name), second.get(name)]
        for name in sorted({*first, *second})
        if name != "load_average" and first.get(name) != second.get(name)
    }
