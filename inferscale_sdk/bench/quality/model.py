"""The embedded engine's parts, put together so that a given answer can be scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inferscale_sdk.engines.transformers.cache import Cache, append, new_cache, read
from inferscale_sdk.engines.transformers.loading import (
    LoadedModel,
    load_model,
)
from inferscale_sdk.engines.transformers.proving import Proof, prove
from inferscale_sdk.engines.transformers.runner import Runner
from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.injection.match import matching_prefix
from inferscale_sdk.injection.mean import averaged
from inferscale_sdk.injection.pieces import gather, pieces_between
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.prompt.base import ChatTokenizer, PromptPlan
from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer
from inferscale_sdk.protocol import CaptureSpan, Reason

__all__ = ["ScoringModel"]

_CHUNK = 512


@dataclass
class ScoringModel:
    """A model, proved, with the product's own capture and injection.

    Args:
        model: The model.
        runner: Its forward passes.
        proof: How its keys turn.
        tokenizer: Its tokenizer and chat template.
    """

    model: LoadedModel
    runner: Runner
    proof: Proof
    tokenizer: ChatTokenizer

    @classmethod
    def load(
        cls, source: str, *, dtype: str | None = None, device: str | None = None
    ) -> ScoringModel:
        """Load and prove a model.

        Raises:
            IncompatibleModel: It cannot take injected memory.
        """
        model = load_model(
            source,
            device=device,
            dtype=dtype,
            max_model_len=None,
            digest_cache=None,
        )
        runner = Runner(model)
        proof = prove(model, runner)
        if proof.verdict.status != "exact":
            raise IncompatibleModel(f"{source} cannot be measured: {proof.verdict.reason}")
        return cls(model, runner, proof, TransformersChatTokenizer(source))

    # -- keeping ---------------------------------------------------------------------------

    def capture(
        self, token_ids: Sequence[int], spans: Sequence[CaptureSpan], known: Segment | None = None
    ) -> dict[str, Segment]:
        """Compute a prompt and keep spans of it, as the engine does.

        Args:
            token_ids: The prompt.
            spans: What to keep.
            known: A segment that the prompt begins with; it is not computed again.
        """
        cache, start = new_cache(), 0
        if known is not None and known.token_digest == token_digest(token_ids[: known.n_tokens]):
            append(cache, known.data)
            start = known.n_tokens
        self._prefill(cache, token_ids[start : max(span.stop for span in spans)])
        return {
            span.key: Segment(
                span.key,
                read(cache, span.start, span.stop),
                span.start,
                token_digest(token_ids[span.start : span.stop]),
            )
            for span in spans
        }

    def mean(self, segment: Segment, beside: Segment) -> Segment:
        """Two readings as one, as the engine does it."""
        mean, reason = averaged(segment, beside, self.proof.tables, device=self.model.device)
        if reason:
            raise IncompatibleModel(f"two readings cannot be averaged: {reason}")
        return mean

    # -- answering -------------------------------------------------------------------------

    def score(
        self,
        plan: PromptPlan,
        stored: Mapping[str, Segment],
        answer: Sequence[int],
        *,
        chunk: int | None = None,
    ) -> torch.Tensor:
        """How likely the model finds an answer, token by token.

        Args:
            plan: The prompt; its segments are injected.
            stored: Segments by key; every one of the plan's must be there.
            answer: Tokens forced upon the model.
            chunk: Compute the prompt in pieces of so many tokens.

        Returns:
            Log-probabilities ``[answer, vocabulary]``, float32.
        """
        cache, start = self._injected(plan, stored)
        rest = [*plan.token_ids[start:], *answer[:-1]]
        keep = len(answer)
        if chunk is not None and len(rest) - keep > chunk:
            head = (len(rest) - keep) // chunk * chunk
            self._prefill(cache, rest[:head], chunk)
            rest = rest[head:]
        logits = self.runner.logits(cache, rest, keep)
        return torch.log_softmax(logits.float(), -1)

    def greedy(self, plan: PromptPlan, stored: Mapping[str, Segment], max_tokens: int) -> str:
        """The model's own answer: the likeliest token each time, up to the end of a line."""
        cache, start = self._injected(plan, stored)
        logits = self._prefill(cache, plan.token_ids[start:])
        made: list[int] = []
        while len(made) < max_tokens:
            token = int(logits.argmax())
            if token in self.model.eos_ids:
                break
            made.append(token)
            if "\n" in self.tokenizer.decode(made).lstrip():
                break
            logits = self.runner.prefill(cache, [token])
        return self.tokenizer.decode(made).strip()

    # -- inside ----------------------------------------------------------------------------

    def _injected(self, plan: PromptPlan, stored: Mapping[str, Segment]) -> tuple[Cache, int]:
        cache: Any = new_cache()
        if not plan.segments:
            return cache, 0
        match = matching_prefix(plan.segments, plan.token_ids, stored.get, lambda _: Reason.MISSING)
        wanted = sum(segment.n_tokens for segment in plan.segments)
        if match.end != wanted:  # a measurement of something else
            raise IncompatibleModel(
                f"only {match.end} of {wanted} tokens can be injected: {match.reason}"
            )
        assert self.proof.layout is not None
        data = gather(
            pieces_between(plan.segments, 0, match.end),
            stored,
            self.proof.layout,
            self.proof.tables,
            device=self.model.device,
        )
        append(cache, data)
        return cache, match.end

    def _prefill(self, cache: Cache, token_ids: Sequence[int], chunk: int = _CHUNK) -> torch.Tensor:
        logits = torch.empty(0)
        for start in range(0, len(token_ids), chunk):
            logits = self.runner.prefill(cache, token_ids[start : start + chunk])
        return logits
