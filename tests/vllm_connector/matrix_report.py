"""The matrix's results as the page ``docs/models.md``."""

from __future__ import annotations

from typing import Any

from matrix_models import AXES, FAMILIES, FAULTS

HEAD = """# Models

Written by `make models` from the results of `tests/vllm_connector/test_matrix.py`; do not edit.

Each row is a small random checkpoint (4 layers, SmolLM2's tokenizer) on real vLLM on a CPU, through
encode, probe, inject and decode. **Exact** means: a prefix of 896 tokens injected at its own origin
gives bit for bit the log-probabilities that the same tokens found in vLLM's own prefix cache give,
over 12 generated tokens, and the first layer's keys of a fact moved to other positions differ from
prefilled ones by at most one unit in the last place of the key's length. **Text** means: the model
is refused with the reason given, and memory reaches it as prompt text.

`inferscale doctor --model PATH` gives the verdict on a model of yours, layer kind by layer kind.
"""


def write_report(results: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    exact = sum(results[name]["status"] == "exact" for name in FAMILIES)
    parts = [HEAD, f"{exact} of {len(FAMILIES)} families are exact.\n", "## Families\n"]
    parts.append(_table(FAMILIES, results))
    parts.append("## Other axes\n\nLlama with default rotary positions, one thing changed.\n")
    parts.append(_table(AXES, results))
    parts.append(
        "## Deliberate faults\n\nEach is caught by the probe, so that the model is served as text, "
        "or by the comparison of answers in the tests.\n"
    )
    parts.append(_faults(results))
    return "\n".join(parts)


def _table(cases: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    rows = [
        "| model | verdict | layers | probe: keys | probe: values | moved keys | reason |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in cases.items():
        result = results[name]
        kinds = "<br>".join(f"{x['n_layers']} × {x['kind']}" for x in result["layers"]) or "–"
        verdict = "exact" if result["status"] == "exact" else "text"
        if verdict == "exact" and not case.deterministic:
            verdict = "exact within the engine's own noise"
        moved = result.get("moved_units")
        probed = result["status"] == "exact"
        rows.append(
            f"| {case.family} | **{verdict}** | {kinds} "
            f"| {result['key_error']:.1e} | {result['value_drift']:.1e} "
            if probed
            else f"| {case.family} | **{verdict}** | {kinds} | – | – "
        )
        rows[-1] += f"| {'–' if moved is None else f'{moved:.2f}'} | {result['reason'] or ''} |"
    return "\n".join(rows) + "\n"


def _faults(results: dict[str, dict[str, Any]]) -> str:
    rows = ["| fault | caught by | key deviation |", "|---|---|---|"]
    for name, case in FAULTS.items():
        result = results[name]
        by = "probe" if result["status"] == "text_only" else "comparison of answers"
        rows.append(f"| {case.family} | {by} | {result['key_error']:.2g} |")
    return "\n".join(rows) + "\n"
