"""Choosing the next token."""

from __future__ import annotations

import torch

from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.engines.transformers.options import Options

__all__ = ["Chooser"]


class Chooser:
    """Chooses one request's tokens. The same seed and the same logits give the same tokens."""

    def __init__(self, sampling: Sampling, options: Options) -> None:
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p
        self._top_k = options.top_k
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token.

        Args:
            logits: ``[vocabulary]`` of the last position, any dtype and device.
        """
        if self._temperature == 0.0:
            return int(logits.argmax())
        # On the processor and in float32, so that a seed means the same on every device.
        scaled = logits.float().cpu() / self._temperature
        ordered, tokens = scaled.sort(descending=True, stable=True)
        if self._top_k:
            ordered = ordered[: self._top_k]
        shares = ordered.softmax(dim=0)
        # The nucleus: as few as reach top_p together, the one that crosses it included.
        inside = shares.cumsum(dim=0) - shares < self._top_p
        inside[0] = True
        shares = shares.masked_fill(~inside, 0.0)
        return int(tokens[torch.multinomial(shares, 1, generator=self._generator)])
