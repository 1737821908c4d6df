"""Segments without KV, captured and verified as the connector does it."""

from __future__ import annotations

from collections.abc import Mapping

from inferscale_sdk.errors import EngineError
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.prompt.base import EncodePlan, PromptPlan
from inferscale_sdk.protocol import EncodeAnswer, InjectAnswer, Reason, salt_matches
from inferscale_sdk.types import InjectionReport, InjectionStatus

__all__ = ["FakeSegments", "report", "why_no_mean"]


def why_no_mean(digests: Mapping[str, str], beside: str | None, digest: str) -> Reason:
    """Why no mean can be taken with an earlier reading, if it is asked for."""
    if beside is None or digests.get(beside) == digest:
        return Reason.OK
    return Reason.TOKEN_MISMATCH if beside in digests else Reason.MISSING


class FakeSegments:
    """A dict ``key -> token digest`` in place of a KV store.

    An injection counts from position 0 as far as it is contiguous: each segment's digest must
    equal that of the prompt's tokens at its place, at least one token is left to compute, the salt
    is bound to the keys and the model is this one. A preamble that is not there is learnt on the
    way.

    Args:
        fingerprint: The model's.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.digests: dict[str, str] = {}

    def capture(self, plan: EncodePlan) -> EncodeAnswer:
        """Keep the digests of the plan's spans.

        Raises:
            EngineError: A span lies outside the prompt.
        """
        spans = plan.op.captures
        if plan.op.fingerprint != self.fingerprint:
            return EncodeAnswer(failed={span.key: Reason.WRONG_MODEL for span in spans})
        failed = {}
        for span in spans:
            own = plan.token_ids[span.start : span.stop]
            if len(own) != span.stop - span.start:
                raise EngineError(
                    f"a capture stops at {span.stop}, the prompt has {len(plan.token_ids)} tokens"
                )
            digest = token_digest(own)
            if reason := why_no_mean(self.digests, span.beside, digest):
                failed[span.key] = reason
            else:
                self.digests[span.key] = digest
        stored = tuple(span.key for span in spans if span.key not in failed)
        return EncodeAnswer(stored=stored, failed=failed)

    def inject(self, plan: PromptPlan) -> InjectAnswer:
        """What the connector would take from stored KV."""
        if plan.fingerprint != self.fingerprint:
            return InjectAnswer(reason=Reason.WRONG_MODEL)
        if not salt_matches(plan.cache_salt, [s.key for s in plan.segments]):
            return InjectAnswer(reason=Reason.WRONG_SALT if plan.cache_salt else Reason.NO_SALT)
        missing = tuple(s.key for s in plan.segments if s.key not in self.digests)
        at, loaded, learned, reason = 0, [], [], Reason.OK
        for segment in plan.segments:
            own = plan.token_ids[at : at + segment.n_tokens]
            stored = self.digests.get(segment.key)
            if stored != token_digest(own):
                reason = Reason.MISSING if stored is None else Reason.TOKEN_MISMATCH
                if stored is None and segment.kind == "preamble":
                    self.digests[segment.key] = token_digest(own)
                    learned.append(segment.key)
                break
            loaded.append(segment.key)
            at += segment.n_tokens
        claimed = min(at, len(plan.token_ids) - 1)
        return InjectAnswer(
            reason=reason,
            claimed_tokens=claimed,
            loaded_tokens=claimed,
            loaded_keys=tuple(loaded),
            missing_keys=missing,
            learned_keys=tuple(learned),
        )


def report(plan: PromptPlan, answer: InjectAnswer | None, ttft: float | None) -> InjectionReport:
    """What the engine says became of the plan's memory."""
    injected = (answer.loaded_tokens or 0) if answer else 0
    if answer and len(answer.loaded_keys) == len(plan.segments):
        status = InjectionStatus.INJECTED
    elif injected:
        status = InjectionStatus.PARTIAL
    else:
        status = InjectionStatus.TEXT if plan.fact_ids else InjectionStatus.NONE
    return InjectionReport(
        status=status,
        reason=answer.reason.value if answer else "",
        prompt_tokens=len(plan.token_ids),
        memory_tokens=plan.memory_tokens,
        injected_tokens=injected,
        prefilled_tokens=len(plan.token_ids) - injected,
        fact_ids=plan.fact_ids,
        missing_keys=answer.missing_keys if answer else (),
        ttft_ms=ttft,
    )
