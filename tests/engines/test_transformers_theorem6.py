"""Keys taken before rotation and keys moved after it are the same keys (Theorem 6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferscale_sdk import TransformersEngine  # noqa: E402
from inferscale_sdk.engines.transformers.cache import new_cache, read  # noqa: E402
from inferscale_sdk.engines.transformers.unrotated import (  # noqa: E402
    prefill_unrotated,
    rotated_at,
)
from inferscale_sdk.injection.pieces import Piece, gather  # noqa: E402
from inferscale_sdk.kv.segment import Segment  # noqa: E402

KEY = "a" * 40
N_WINDOW, N_TOKENS = 50, 40


def both_forms(engine: TransformersEngine, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of a fact behind a window, moved to ``place``: by the difference, and the paper's way.

    Each is float32 ``[layer, token, kv_head, head_dim]``, divided by its layer's largest key.
    """
    core = engine._runtime.ready()
    tokens = [(31 * i * i + 7 * i) % core.model.vocab_size for i in range(N_WINDOW + N_TOKENS)]
    cache = new_cache()
    unrotated = prefill_unrotated(core.model, core.runner, cache, tokens)
    assert unrotated is not None
    segment = Segment(KEY, read(cache, N_WINDOW, len(tokens)), N_WINDOW, "0" * 32)
    assert core.proof.layout is not None
    moved = gather(
        (Piece(KEY, 0, N_TOKENS, place),),
        {KEY: segment},
        core.proof.layout,
        core.proof.tables,
        device=torch.device("cpu"),
    )[:, 0].float()
    positions = torch.arange(place, place + N_TOKENS)
    papers = torch.stack(
        [
            rotated_at(keys[N_WINDOW:], table, positions)
            for keys, table in zip(unrotated, core.proof.tables, strict=True)
        ]
    )
    scale = papers.abs().amax(dim=(1, 2, 3), keepdim=True)
    return moved / scale, papers / scale


@pytest.mark.parametrize("place", [0, 3, 50, 777])
@pytest.mark.parametrize(
    ("config_class", "changes"),
    [
        ("LlamaConfig", {}),
        ("Qwen3Config", {}),
        ("Olmo2Config", {}),
        ("CohereConfig", {}),
        ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}),
        (
            "LlamaConfig",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                }
            },
        ),
    ],
    ids=["llama", "qwen3", "olmo2", "cohere", "smollm3", "yarn"],
)
def test_both_forms_agree_in_float32(
    tiny_model: Callable[..., Path],
    embed: Callable[..., TransformersEngine],
    config_class: str,
    changes: dict[str, Any],
    place: int,
) -> None:
    moved, papers = both_forms(embed(tiny_model(config_class, **changes)), place)

    torch.testing.assert_close(moved, papers, atol=1e-5, rtol=0)


@pytest.mark.engine
@pytest.mark.parametrize("place", [0, 50, 1000, 8000])
def test_both_forms_agree_within_bf16_on_a_real_model(
    model_path: Path,
    embed: Callable[..., TransformersEngine],
    place: int,
    tell: Callable[[str, object], None],
) -> None:
    moved, papers = both_forms(embed(model_path), place)

    difference = (moved - papers).abs()
    rms = float(difference.square().mean().sqrt() / papers.square().mean().sqrt())
    tell(f"moved to {place}, largest deviation and rms", (float(difference.max()), rms))
    # bfloat16 has units of 2**-8 of a number's size; the model rounds three times where it rotates,
    # moving rounds once more.
    assert float(difference.max()) <= 4 * 2**-8
    assert rms <= 2**-8
