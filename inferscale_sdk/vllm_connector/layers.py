"""Worker half: the model's attention layers, seen as one stack with named dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.rope.spec import RopeSpec, layer_specs
from inferscale_sdk.rope.table import RotaryTable

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["LayerStack", "slots_of"]

MUTED = -1e4  # as a logit: no share left, and finite, which kernels like better than infinity

CaptureHook = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


def slots_of(block_ids: tuple[int, ...], first: int, last: int, block_size: int) -> torch.Tensor:
    """Cache slots of prompt positions ``first`` to ``last``: int64 [token]."""
    positions = torch.arange(first, last)
    blocks = torch.tensor(block_ids, dtype=torch.int64)
    return blocks[positions // block_size] * block_size + positions % block_size


@dataclass(frozen=True)
class LayerStack:
    """Attention layers in model order, all with the same KV shape.

    Args:
        names: Layer names as vLLM knows them.
        modules: The attention modules.
        specs: Rotary parameters per layer, ``None`` for a layer without positions.
        layout: Shape and dtype of a segment on this rank.
        device: Where the cache lies.
        block_size: Tokens per cache block.
    """

    names: tuple[str, ...]
    modules: tuple[Any, ...]
    specs: tuple[RopeSpec | None, ...]
    layout: SegmentLayout
    device: torch.device
    block_size: int

    @classmethod
    def from_engine(
        cls,
        vllm_config: VllmConfig,
        kv_caches: Mapping[str, torch.Tensor],
        hf_config: Mapping[str, Any],
    ) -> LayerStack:
        """Find the layers behind vLLM's KV caches.

        Raises:
            IncompatibleModel: A layer keeps its state in a form that cannot be injected, or its
                positions are not pure rotations; the message says which and why.
        """
        context = vllm_config.compilation_config.static_forward_context
        names = tuple(sorted(kv_caches, key=_layer_number))
        modules = tuple(context[name] for name in names)
        for name, module in zip(names, modules, strict=True):
            _check_layer(name, module)
        shapes = {
            (m.num_kv_heads, m.head_size, getattr(m, "head_size_v", m.head_size)) for m in modules
        }
        if len(shapes) != 1:
            raise IncompatibleModel(
                f"layers differ in KV shape (heads, key size, value size): {sorted(shapes)}"
            )
        heads, key_dim, value_dim = shapes.pop()
        if key_dim != value_dim:
            raise IncompatibleModel(f"keys have {key_dim} channels but values {value_dim}")
        layout = SegmentLayout(
            n_layers=len(names),
            n_kv_heads=heads,
            head_dim=key_dim,
            dtype=vllm_config.model_config.dtype,
        )
        cache = kv_caches[names[0]]
        return cls(
            names=names,
            modules=modules,
            specs=tuple(layer_specs(hf_config, len(names))),
            layout=layout,
            device=cache.device,
            block_size=vllm_config.cache_config.block_size,
        )

    def tables(
        self, n_positions: int, rounding: torch.dtype | None
    ) -> tuple[RotaryTable | None, ...]:
        """A rotation table per layer; layers with the same rotation share one."""
        made = {
            spec: RotaryTable(spec, n_positions, rounding=rounding, device=self.device)
            for spec in set(self.specs)
            if spec is not None
        }
        return tuple(None if spec is None else made[spec] for spec in self.specs)

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write keys and values ``[token, kv_head, head_dim]`` to cache ``slots`` [token]."""
        module = self.modules[layer]
        # The unwrapped method: what is injected must not be captured as if it were computed.
        update = getattr(
            module.impl.do_kv_cache_update, "unwrapped", module.impl.do_kv_cache_update
        )
        update(module, keys, values, module.kv_cache, slots)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many tokens each layer looks back, ``None`` for all."""
        found = (getattr(module, "sliding_window", None) for module in self.modules)
        return tuple(w if isinstance(w, int) and w > 0 else None for w in found)

    @property
    def has_sinks(self) -> bool:
        """Whether attention sinks take a share that depends on how many tokens there are."""
        return any(getattr(m.impl, "sinks", None) is not None for m in self.modules)

    def mute_sinks(self) -> Callable[[], None]:
        """Give the sinks no weight; returns what puts them back."""
        impls = [m.impl for m in self.modules if getattr(m.impl, "sinks", None) is not None]
        kept = [impl.sinks for impl in impls]
        for impl in impls:
            impl.sinks = torch.full_like(impl.sinks, MUTED)

        def restore() -> None:
            for impl, sinks in zip(impls, kept, strict=True):
                impl.sinks = sinks

        return restore

    def watch(self, hook: CaptureHook) -> None:
        """Call ``hook(layer, keys, values, slots)`` whenever the engine fills its cache."""
        for index, module in enumerate(self.modules):
            module.impl.do_kv_cache_update = _watched(module.impl.do_kv_cache_update, index, hook)


def _watched(update: Callable[..., None], index: int, hook: CaptureHook) -> Callable[..., None]:
    def do_kv_cache_update(
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        update(layer, key, value, kv_cache, slot_mapping)
        hook(index, key, value, slot_mapping)

    do_kv_cache_update.unwrapped = update  # type: ignore[attr-defined]
    return do_kv_cache_update


def _layer_number(name: str) -> tuple[int, str]:
    """``model.layers.12.self_attn.attn`` sorts by 12."""
    number = next((int(part) for part in name.split(".") if part.isdigit()), -1)
    return number, name


def _check_layer(name: str, module: Any) -> None:
    impl = getattr(module, "impl", None)
    if impl is None or not hasattr(module, "num_kv_heads"):
        raise IncompatibleModel(
            f"layer {name!r} ({type(module).__name__}) keeps recurrent state, not keys and values "
            "of single tokens"
        )
    if not hasattr(impl, "do_kv_cache_update") or type(module).__name__ == "MLAAttention":
        raise IncompatibleModel(
            f"layer {name!r} ({type(module).__name__}, {type(impl).__name__}) has a KV cache form "
            "that this version cannot write"
        )
