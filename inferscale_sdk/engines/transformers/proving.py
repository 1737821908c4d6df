"""Whether segments can be injected into the loaded model, proved on that model.

Two independent checks. The probe of :mod:`inferscale_sdk.injection.probe` compares keys that the
model wrote at different positions (the delta form). The paper's own form takes keys *before*
rotation and rotates them where they shall stand (Chunked RoPE, Theorem 6); where the model lets us
see its keys before rotation, that form is compared with what the model wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inferscale_sdk.engines.transformers.cache import Cache, layout_of, new_cache, read
from inferscale_sdk.engines.transformers.loading import LoadedModel
from inferscale_sdk.engines.transformers.runner import Runner
from inferscale_sdk.engines.transformers.unrotated import prefill_unrotated, rotated_at
from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.injection.pieces import LayerTables
from inferscale_sdk.injection.probe import judge, probe_token
from inferscale_sdk.kv.layout import KEY, SegmentLayout
from inferscale_sdk.protocol import PROBE_TOKENS, ProbeVerdict
from inferscale_sdk.rope import families
from inferscale_sdk.rope.spec import RopeSpec, layer_specs
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["Proof", "prove"]

log = logging.getLogger(__name__)

# Largest key deviation, relative to the layer's largest key, that rounding may cause.
TOLERANCE = 0.02
# How far the frequencies in the model's own buffers, float32, may be from ours, float64.
_SAME_FREQUENCY = 1e-4


@dataclass(frozen=True)
class Proof:
    """What proving found out.

    Args:
        verdict: Whether segments may be injected.
        layout: Shape and dtype of segments; ``None`` if there are none.
        tables: Rotation table per layer, as the model rounds it.
        unrotated_error: Largest deviation of the paper's own form from what the model wrote,
            relative to the layer's largest key; ``None`` where the model does not let us look.
    """

    verdict: ProbeVerdict
    layout: SegmentLayout | None = None
    tables: LayerTables = ()
    unrotated_error: float | None = None


def prove(model: LoadedModel, runner: Runner, *, rope_theta: float | None = None) -> Proof:
    """Run the probe. Never raises for a model that merely cannot take segments.

    Args:
        model: The model.
        runner: Its forward passes.
        rope_theta: Rotary base to use in place of the configured one. A wrong one fails the probe.
    """
    try:
        specs = _specs(model, rope_theta)
        cache, unrotated = _probe(model, runner)
        layout = layout_of(cache)
        if layout.n_layers != len(specs):
            raise IncompatibleModel(
                f"{layout.n_layers} of the model's {len(specs)} layers keep keys and values"
            )
    except IncompatibleModel as error:
        return Proof(ProbeVerdict(status="text_only", reason=str(error)))
    except Exception as error:
        log.exception("the rotation probe could not run")
        reason = f"the rotation probe could not run: {type(error).__name__}: {error}"
        return Proof(ProbeVerdict(status="text_only", reason=reason))
    candidates = [
        _tables(specs, model, rounding, own)
        # As the model does it; the same from our frequencies; exact angles.
        for rounding, own in ((model.dtype, True), (model.dtype, False), (None, False))
    ]
    names = [f"layers.{number}" for number in range(layout.n_layers)]
    data = read(cache, 0, PROBE_TOKENS).to(model.device)
    windows = families.windows(families.text_config(model.config), layout.n_layers)
    judgement = judge(data, candidates, names, tolerance=TOLERANCE, windows=windows)
    tables, verdict = candidates[judgement.candidate], judgement.verdict
    fault = _frequency_fault(specs, model.module)
    if verdict.status == "exact" and fault:
        verdict = verdict.model_copy(update={"status": "text_only", "reason": fault})
    return Proof(verdict, layout, tables, _unrotated_error(data[:, KEY], unrotated, tables))


def _frequency_fault(specs: Sequence[RopeSpec | None], module: Any) -> str:
    """What is wrong with the frequencies, empty if nothing is or the model does not show its own.

    The probe sees the first few hundred positions. What slow pairs are off by, where a scaling is
    not the model's, adds up behind them.
    """
    buffers = _frequency_buffers(module)
    for spec in dict.fromkeys(specs):
        if spec is None:
            continue
        shown = [buffer for buffer in buffers if len(buffer) == len(spec.frequencies)]
        if shown and not any(_agrees(buffer, spec) for buffer in shown):
            return (
                f"the frequencies that follow from the rotary parameters in the model's "
                f"configuration ({spec}) are not those the model has"
            )
    return ""


def _agrees(buffer: torch.Tensor, spec: RopeSpec) -> bool:
    ours = torch.from_numpy(spec.inv_freq())
    return buffer.shape == ours.shape and torch.allclose(
        buffer, ours, rtol=_SAME_FREQUENCY, atol=0.0
    )


def _specs(model: LoadedModel, rope_theta: float | None) -> list[RopeSpec | None]:
    specs = layer_specs(model.config, model.n_layers)
    if rope_theta is None:
        return specs
    return [spec.with_theta(rope_theta) if spec is not None else None for spec in specs]


def _probe(model: LoadedModel, runner: Runner) -> tuple[Cache, torch.Tensor | None]:
    if model.max_model_len < PROBE_TOKENS:
        raise IncompatibleModel(
            f"the context of {model.max_model_len} tokens is shorter than the probe's "
            f"{PROBE_TOKENS}"
        )
    cache = new_cache()
    tokens = [probe_token(model.vocab_size)] * PROBE_TOKENS
    return cache, prefill_unrotated(model, runner, cache, tokens)


def _unrotated_error(
    written: torch.Tensor, unrotated: torch.Tensor | None, tables: LayerTables
) -> float | None:
    """Keys ``written`` by the model against the paper's own form of those before rotation.

    Both are ``[layer, token, kv_head, head_dim]``.
    """
    if unrotated is None:
        return None
    errors = []
    for keys, before, table in zip(written, unrotated, tables, strict=True):
        positions = torch.arange(keys.shape[0], device=keys.device)
        expected = rotated_at(before.to(keys.device), table, positions)
        scale = float(keys.float().abs().max()) or 1.0
        errors.append(float((keys.float() - expected).abs().max()) / scale)
    return max(errors)


def _tables(
    specs: Sequence[RopeSpec | None],
    model: LoadedModel,
    rounding: torch.dtype | None,
    own_frequencies: bool,
) -> tuple[RotaryTable | None, ...]:
    """A table per layer; layers with the same rotation share one."""
    buffers = _frequency_buffers(model.module) if own_frequencies else []
    made = {
        spec: RotaryTable(
            _as_the_model_has_it(spec, buffers),
            model.max_model_len,
            rounding=rounding,
            device=model.device,
        )
        for spec in set(specs)
        if spec is not None
    }
    return tuple(None if spec is None else made[spec] for spec in specs)


def _frequency_buffers(module: Any) -> list[torch.Tensor]:
    return [
        buffer.detach().double().cpu()
        for name, buffer in module.named_buffers()
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq")
    ]


def _as_the_model_has_it(spec: RopeSpec, buffers: Sequence[torch.Tensor]) -> RopeSpec:
    """``spec`` with the float32 frequencies in the model's own buffer, if one agrees with it.

    The last bits matter: at position 8,000 an error of one unit in float32 turns a pair by 5e-4.
    """
    for buffer in buffers:
        if _agrees(buffer, spec):
            return replace(spec, frequencies=tuple(buffer.tolist()))
    return spec
