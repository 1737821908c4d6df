"""One case of the matrix in a process of its own: prints a JSON object and ends.

python matrix_run.py CASE FOLDER TOKENIZER
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from matrix_models import CASES, Case

MARK = "MATRIX-RESULT "
PLACES = (7, 333, 900)


def main(name: str, folder: Path, tokenizer: Path) -> dict[str, Any]:
    case = CASES[name]
    os.environ.update(case.environment)
    model = case.make(folder / "model", tokenizer)
    from connector_harness import start_harness

    break_on_purpose(case)
    adapter = make_adapter(model, folder / "adapter") if case.lora else None
    harness = start_harness(
        model, folder / "kv", dtype=case.dtype, adapter=adapter, engine=case.engine
    )
    probe = harness.ping.probe
    result = {
        "name": name,
        "family": case.family,
        "status": probe.status,
        "reason": probe.reason,
        "key_error": probe.max_key_error,
        "value_drift": probe.max_value_drift,
        "layers": [layer.model_dump(mode="json") for layer in probe.layers],
    }
    prompt = harness.encode_text(prose())[:1000]
    if probe.status == "exact":
        result |= in_place(harness, prompt)
        result |= moved(harness, prompt)
    else:
        # Served as text: an injection asked for all the same changes nothing.
        plain = harness.ask(prompt[:200], n=6)
        asked = harness.inject(prompt[:200], [("a" * 40, 100)], n=6)
        result |= {"text_answer_same": plain.token_ids == asked.token_ids}
        result |= {"injected_as_text": asked.n_cached == 0}
    return result


def prose() -> str:
    return "".join(
        f"- On day {i} Anna walked {3 * i + 2} kilometres along the river to house {i * 7 % 31}.\n"
        for i in range(60)
    )


def in_place(harness: Any, prompt: list[int]) -> dict[str, Any]:
    """Injection at the segments' own origins against a local prefix hit of the same tokens."""
    n_tokens = 7 * 128
    prompt = prompt[: n_tokens + 60]
    bounds = [(0, 100), (100, 300), (300, n_tokens)]
    keys = harness.encode(prompt, bounds, tag="origin")
    segments = [(key, stop - start) for key, (start, stop) in zip(keys, bounds, strict=True)]
    if harness.prefix_caching:
        harness.ask(prompt, salt="warm")
        reference = harness.ask(prompt, salt="warm", n=12, logprobs=5)
    else:
        reference = harness.inject(prompt, segments, n=12, logprobs=5)
    injected = harness.inject(prompt, segments, n=12, logprobs=5)
    plain = harness.ask(prompt, n=12, logprobs=5)
    again = harness.ask(prompt, n=12, logprobs=5)
    return {
        "injected_tokens": injected.n_cached,
        "reference_tokens": reference.n_cached,
        "same_logprobs": injected.logprobs == reference.logprobs,
        "same_answer_as_prefill": injected.token_ids == plain.token_ids,
        "logprob_gap_to_reference": first_gap(injected, reference),
        "logprob_gap_to_prefill": first_gap(injected, plain),
        "engine_noise": first_gap(plain, again),
    }


def first_gap(one: Any, other: Any) -> float:
    """Largest difference of the first token's log-probabilities that both sides report."""
    a, b = one.logprobs[0], other.logprobs[0]
    return max((abs(a[t] - b[t]) for t in a.keys() & b.keys()), default=float("inf"))


def moved(harness: Any, prompt: list[int]) -> dict[str, Any]:
    """Layer-0 keys of a fact at other places against prefilled ones, in units of the pair."""
    if not harness.single_process:
        return {}
    start, length = 200, 32
    fact = prompt[start : start + length]
    (key,) = harness.encode(prompt[: start + length], [(start, start + length)], tag="moved")
    worst = 0.0
    for place in PLACES:
        there = prompt[:place] + fact + prompt[:4]
        bounds = [(0, place), (place, place + length)]
        prefix, fresh = harness.encode(there, bounds, tag=f"at{place}")
        with harness.spy_on_layer(0) as written:
            harness.inject(there, [(prefix, place), (key, length)])
        worst = max(worst, units(written[0][0][place:], harness.resident(fresh).data[0, 0]))
    return {"moved_units": worst}


def units(actual: Any, expected: Any) -> float:
    """Largest deviation in units of the last place of the head's length."""
    import torch

    mantissa = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}[expected.dtype]
    length = expected.float().norm(dim=-1, keepdim=True)
    unit = 2.0 ** (length.log2().floor() - mantissa)
    return float(((actual.float() - expected.float()).abs() / unit).max())


def break_on_purpose(case: Case) -> None:
    """Make one thing wrong that the probe or the comparison must notice."""
    if not case.fault:
        return
    from inferscale_sdk.rope.spec import RopeSpec
    from inferscale_sdk.vllm_connector import layers

    def wrong(spec: RopeSpec | None) -> RopeSpec | None:
        if spec is None:
            return None
        if case.fault == "wrong base":
            return spec.with_theta(7_000.0)
        if case.fault == "wrong pairing":
            return replace(spec, interleaved=not spec.interleaved)
        half = len(spec.frequencies) // 2  # the slow pairs, which scaling changes
        slower = tuple(f * 0.5 for f in spec.frequencies[half:])
        return replace(spec, frequencies=spec.frequencies[:half] + slower)

    if case.fault == "layers swapped":
        write = layers.LayerStack.write

        def swapped(self: Any, layer: int, keys: Any, values: Any, slots: Any) -> None:
            write(self, {1: 2, 2: 1}.get(layer, layer), keys, values, slots)

        layers.LayerStack.write = swapped  # type: ignore[method-assign]
        return
    real = layers.layer_specs
    layers.layer_specs = lambda *a, **k: [wrong(s) for s in real(*a, **k)]  # type: ignore[assignment]


def make_adapter(model: Path, folder: Path) -> Path:
    """A random LoRA adapter on the key and value projections, in PEFT's file format."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    config = json.loads((model / "config.json").read_text())
    width = config["hidden_size"]
    heads = config["num_key_value_heads"] * width // config["num_attention_heads"]
    torch.manual_seed(1)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name in ("k_proj", "v_proj"):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = (torch.randn(8, width) * 0.1).bfloat16()
            tensors[f"{stem}.lora_B.weight"] = (torch.randn(heads, 8) * 0.1).bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": 8,
                "lora_alpha": 16,
                "target_modules": ["k_proj", "v_proj"],
                "bias": "none",
                "base_model_name_or_path": str(model),
            }
        )
    )
    return folder


if __name__ == "__main__":
    try:
        outcome = main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    except Exception as error:
        traceback.print_exc()
        outcome = {"name": sys.argv[1], "status": "error", "reason": f"{error!r}"[:600]}
    print(MARK + json.dumps(outcome), flush=True)
    os._exit(0)  # vLLM's own shutdown may hang on worker processes
