"""A real engine with every tier, in a process of its own: prints a JSON object and ends.

python tiers_run.py MODEL FOLDER REMOTE_URL
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

MARK = "TIERS-RESULT "
N_SEGMENTS, WIDTH = 8, 50
N_MEMORY = N_SEGMENTS * WIDTH


def main(model: Path, folder: Path, url: str) -> dict[str, Any]:
    os.environ["INFERSCALE_REMOTE_URL"] = url
    from connector_harness import start_harness

    from inferscale_sdk.protocol import CaptureSpan, EncodeOp

    harness = start_harness(
        model,
        folder / "kv",
        write_policy="back",
        device_bytes=64 << 20,
        eviction="cost",
        owner_bytes=256 << 20,
    )
    worker = harness.worker
    disk, remote = worker._below.tiers
    text = "".join(
        f"- On day {i} Anna walked {3 * i + 2} kilometres along the river to house {i * 7 % 31}.\n"
        for i in range(40)
    )
    prompt = harness.encode_text(text)[: N_MEMORY + 30]
    bounds = [(i * WIDTH, (i + 1) * WIDTH) for i in range(N_SEGMENTS)]
    keys = harness.encode(prompt, bounds, tag="tiers")
    segments = [(key, WIDTH) for key in keys]
    worker._below.flush()

    def ask() -> dict[str, Any]:
        out = harness.inject(prompt, segments, n=8, logprobs=5)
        return {
            "loaded": out.answer["loaded_tokens"],
            "logprobs": [sorted(step.items()) for step in out.logprobs],
        }

    result: dict[str, Any] = {"from host": ask()}
    result["from device"] = ask()
    result["device"] = worker._resident.device_stats().as_dict()
    files = list((folder / "kv").rglob("*.ifs"))
    result["files"] = len(files)
    result["sealed"] = all(file.read_bytes().startswith(b"\x89IFSENC\n") for file in files)

    harness.drop_resident()
    disk.clear()
    result["from remote"] = ask()
    result["remote"] = remote.stats().as_dict()
    result["promoted to disk"] = sum(disk.contains(key) for key in keys)

    key = "0123456789" * 4
    span = CaptureSpan(key=key, start=0, stop=WIDTH)
    op = EncodeOp(fingerprint=harness.fingerprint, captures=(span,), owner="0a" * 16)
    harness.ask(prompt[: WIDTH + 5], op, n=2)
    result["owner"] = harness.resident(key).owner
    result["used by owner"] = harness.scheduler._core.index._ledger.used_by("0a" * 16)
    result["its bytes"] = harness.resident(key).nbytes

    # The remote gone, the disk empty: the same tokens are computed.
    harness.drop_resident()
    disk.clear()
    remote.tier.clear()
    plain = harness.ask(prompt, n=8)
    gone = harness.inject(prompt, segments, n=8)
    result["text when all is gone"] = gone.token_ids == plain.token_ids and gone.n_cached == 0
    result["stats"] = harness.ask([5], {"v": 1, "op": "stats"}).answer["tiers"]
    harness.llm.llm_engine.engine_core.shutdown()
    return result


if __name__ == "__main__":
    answer = main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
