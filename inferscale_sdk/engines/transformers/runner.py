"""Forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inferscale_sdk.engines.transformers.cache import Cache
from inferscale_sdk.engines.transformers.loading import LoadedModel

__all__ = ["Runner"]


class Runner:
    """Runs tokens through the model. One thread at a time.

    Args:
        model: The model.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        options = model.forward_options
        # transformers renames ``past_key_values``; the old name warns where the new one exists.
        self._cache_name = "cache" if "cache" in options else "past_key_values"
        self._keeps_logits = "logits_to_keep" in options

    def prefill(self, cache: Cache, token_ids: Sequence[int]) -> torch.Tensor:
        """Compute tokens behind what a cache of one row holds.

        Returns:
            Logits ``[vocabulary]`` of the last token.
        """
        return self.logits(cache, token_ids, 1)[-1]

    def logits(self, cache: Cache, token_ids: Sequence[int], keep: int) -> torch.Tensor:
        """Compute tokens as :meth:`prefill` does; a forced answer needs more than the last logits.

        Returns:
            Logits ``[keep, vocabulary]`` of the last ``keep`` tokens.
        """
        start = cache.get_seq_length()
        ids = torch.tensor([list(token_ids)], device=self._model.device)
        positions = torch.arange(start, start + len(token_ids), device=self._model.device)[None]
        return self._forward(cache, ids, positions, None, keep)[0]

    def step(self, cache: Cache, token_ids: Sequence[int], padding: Sequence[int]) -> torch.Tensor:
        """Compute one more token of every row.

        Args:
            cache: ``row`` rows, padded on the left.
            token_ids: The newest token of every row.
            padding: Padded tokens of every row.

        Returns:
            Logits ``[row, vocabulary]``.
        """
        device = self._model.device
        past = cache.get_seq_length()
        ids = torch.tensor(token_ids, device=device)[:, None]
        padded = torch.tensor(padding, device=device)[:, None]
        mask = None
        if any(padding):
            mask = (torch.arange(past + 1, device=device)[None] >= padded).long()
        return self._forward(cache, ids, past - padded, mask)[:, -1]

    @torch.no_grad()
    def _forward(
        self,
        cache: Cache,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        keep: int = 1,
    ) -> torch.Tensor:
        """Logits ``[row, keep, vocabulary]`` of the last of ``ids`` [row, token]."""
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if self._keeps_logits:
            options["logits_to_keep"] = keep
        output = self._model.module(
            input_ids=ids, position_ids=positions, attention_mask=mask, **options
        )
        logits: torch.Tensor = output.logits[:, -keep:]
        return logits
