"""Writes ``docs/reliability.md`` from what the fault and load tests recorded.

python tests/faults/write_report.py FAULTS.jsonl LOAD.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from inferscale_sdk.testing.fault_matrix import read_cells, render_field_faults, render_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reliability.md"

HEAD = """# Reliability

Written by `make reliability` from what its tests recorded; do not edit.

## Faults

Each cell is a test: something is broken on purpose under a real vLLM with SmolLM2, a question is
asked, and what comes back is compared with the plain prompt's answer and with the exact injected
one. After a fault of the server, of its store or of the network, no block and no pin may be left
over, and the engine must inject as before. **Answered exactly** means that the whole memory came
from stored KV; **answered as text** that at least some of it was computed instead, with the same
answer (where recall itself is broken: that the question was answered without memory); **clear
error** that the call raised one of the package's errors, and the server or the store went on.

"""

FIELD = """
## Faults met in the field

`make field-faults` runs them, in both environments; the numbers stand in the tests' marks.

"""

LOAD = """
## Load

`make load`: {users} users at once on one server, prefix caching on, a shared secret, {mib} MiB of
host memory so that the disk has to help. Each user remembers, changes, deletes and asks, mostly
asks. Every prompt is decoded and compared with what its user had told and not taken back at that
moment, every answer is searched for codes of others. One put together from parts of the person's
own does not count: so small a model mixes them, without anything injected as well.

| | |
|---|---|
"""

SAMPLES = """
Resources while it ran, by requests done (memory in MiB, of the server with all its processes):

| requests | server memory | its files | client memory | its files | pinned bytes | host bytes |
|---|---|---|---|---|---|---|
"""

GROWTH = """
On a CPU oneDNN keeps machine code for each shape it has met, and every batch size brings some: with
its default of 1,024 a server grew by 0.6 MiB a request, with or without the connector. `inferscale
serve` and `VLLMEngine.launch` let it keep 64. Between the middle of the run and its end the test
allows the server 2 % and 48 MiB.
"""


def main(faults: Path, load: Path) -> None:
    parts = [HEAD, render_table(read_cells(faults)), FIELD, render_field_faults(field_tests())]
    parts.append(load_section(json.loads(load.read_text())))
    DOCS.write_text("".join(parts))


def field_tests() -> dict[int, set[str]]:
    """Names of the tests that carry each number."""
    found: dict[int, set[str]] = defaultdict(set)
    pattern = re.compile(r"field_fault\((\d+)\)(?:.|\n)*?def (test_\w+)")
    for path in (ROOT / "tests").rglob("test_*.py"):
        for number, name in pattern.findall(path.read_text()):
            found[int(number)].add(name)
    return found


def load_section(record: dict[str, Any]) -> str:
    tally, settled = record["tally"], record["settled"]
    # The first facts are told before the clock starts, and count as additions.
    others = sum(tally[name] for name in ("answers", "updates", "deletes"))
    added = tally["requests"] - others
    figures = {
        "requests": tally["requests"],
        "of these: questions, additions, changes, deletions": ", ".join(
            str(n) for n in (tally["answers"], added, tally["updates"], tally["deletes"])
        ),
        "facts told before": tally["adds"] - added,
        "seconds": tally["seconds"],
        "answers with injected memory": tally["injected"] + tally["partly"],
        "answers as text: their facts had no KV yet, or it did not come in time": tally["text"],
        "prompt tokens, and of these injected": (
            f"{tally['prompt_tokens']}, {tally['injected_tokens']}"
        ),
        "facts of others in a prompt or an answer": tally["foreign_facts"],
        "facts taken back and served all the same": tally["stale_facts"],
        "facts missing from a prompt": tally["lost_facts"],
        "errors": tally["errors"],
        "restarts of the engine": 0,
        "afterwards, all encoded: users whose memory was injected whole": (
            f"{settled['injected']} of {settled['users']}"
        ),
        "answers that held the right code": f"{tally['right_code']} of {tally['answers']}",
    }
    text = LOAD.format(users=tally["users"], mib=record["host_mib"])
    text += "".join(f"| {name} | {value} |\n" for name, value in figures.items())
    rows = ("| " + " | ".join(str(value) for value in one.values()) + " |\n"
            for one in record["samples"])  # fmt: skip
    return text + SAMPLES + "".join(rows) + GROWTH


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
