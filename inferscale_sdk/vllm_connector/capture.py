"""Worker half: keeping the keys and values that the engine computes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.vllm_connector.layers import LayerStack, slots_of
from inferscale_sdk.vllm_connector.metadata import CaptureStep, Span

__all__ = ["Capture", "Recorder"]


@dataclass
class Capture:
    """The spans of one request, filled over one or several steps.

    Args:
        base: Prompt position of the buffer's first token.
        data: ``[layer, kv, token, kv_head, head_dim]`` over all spans.
        have: Which tokens of the buffer are filled, bool [token].
        spans: Those not handed over yet.
    """

    base: int
    data: torch.Tensor
    have: torch.Tensor
    spans: dict[str, Span] = field(default_factory=dict)

    def take_complete(self) -> list[tuple[Span, Segment]]:
        """Spans whose tokens are all there, as segments of their own memory."""
        done = []
        for span in list(self.spans.values()):
            start, stop = span.start - self.base, span.stop - self.base
            if bool(self.have[start:stop].all()):
                del self.spans[span.key]
                own = self.data[:, :, start:stop].clone(memory_format=torch.contiguous_format)
                segment = Segment(span.key, own, span.start, span.token_digest, span.owner)
                done.append((span, segment))
        return done


@dataclass(frozen=True, slots=True)
class _Armed:
    """Where one request's tokens of this step go: ``slots`` fill the buffer from ``offset``."""

    capture: Capture
    slots: torch.Tensor
    offset: int


class Recorder:
    """Copies what passes through the layers' cache updates into the buffers of captures.

    Steps batch many requests and split long prompts, so a request's tokens are found by their
    cache slots. ``arm`` before the forward, ``hook`` from every layer, ``disarm`` after.
    """

    def __init__(self, stack: LayerStack) -> None:
        self._stack = stack
        self._captures: dict[str, Capture] = {}
        self._armed: list[_Armed] = []
        self._rows: list[slice | torch.Tensor] = []
        self._layers_seen = 0
        self.error: Exception | None = None

    def arm(self, steps: tuple[CaptureStep, ...]) -> None:
        """Prepare for the forward of this step."""
        self._armed = [armed for step in steps if (armed := self._arm_one(step)) is not None]
        self._layers_seen = 0
        self.error = None

    def _arm_one(self, step: CaptureStep) -> _Armed | None:
        capture = self._captures.get(step.request_id)
        if capture is None:
            capture = self._open(step)
        first = max(step.first, capture.base)
        last = min(step.last, capture.base + capture.have.shape[0])
        if first >= last:
            return None
        slots = slots_of(step.block_ids, first, last, self._stack.block_size)
        return _Armed(capture, slots.to(self._stack.device), first - capture.base)

    def _open(self, step: CaptureStep) -> Capture:
        base = min(span.start for span in step.spans)
        stop = max(span.stop for span in step.spans)
        data = self._stack.layout.empty(stop - base)
        have = torch.zeros(stop - base, dtype=torch.bool)
        capture = Capture(base, data, have, {span.key: span for span in step.spans})
        self._captures[step.request_id] = capture
        return capture

    def hook(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Called by every layer: keys and values ``[token, kv_head, head_dim]``, slots [token]."""
        if not self._armed or self.error is not None:
            return
        try:
            if layer == 0:
                self._rows = [_rows(slots, armed.slots) for armed in self._armed]
            for armed, rows in zip(self._armed, self._rows, strict=True):
                n_tokens = armed.slots.shape[0]
                target = armed.capture.data[layer, :, armed.offset : armed.offset + n_tokens]
                target[0].copy_(keys[rows])
                target[1].copy_(values[rows])
            self._layers_seen += 1
        except Exception as error:
            # Never into the forward pass: the capture is given up, the request goes on.
            self.error = error

    def disarm(self) -> list[tuple[str, Span, Segment]]:
        """After the forward: what is complete now, as (request id, span, segment)."""
        armed, self._armed = self._armed, []
        if self.error is None and self._layers_seen == len(self._stack.modules):
            for one in armed:
                one.capture.have[one.offset : one.offset + one.slots.shape[0]] = True
        done = []
        for request_id, capture in list(self._captures.items()):
            done += [(request_id, span, seg) for span, seg in capture.take_complete()]
            if not capture.spans:
                del self._captures[request_id]
        return done

    def forget(self, keys: Collection[str]) -> None:
        """Spans under these keys are not wanted any more, whoever asked for them."""
        for capture in self._captures.values():
            for key in capture.spans.keys() & keys:
                del capture.spans[key]

    def drop(self, request_id: str) -> None:
        """The request is over; what is incomplete is lost."""
        self._captures.pop(request_id, None)


def _rows(slots: torch.Tensor, wanted: torch.Tensor) -> slice | torch.Tensor:
    """Rows of the batch whose slots are ``wanted``, in that order.

    Raises:
        LookupError: A wanted slot is not in the batch.
    """
    n_tokens = wanted.shape[0]
    starts = (slots == wanted[0]).nonzero()
    if starts.numel() == 1:
        first = int(starts[0])
        if torch.equal(slots[first : first + n_tokens], wanted):
            return slice(first, first + n_tokens)
    order = torch.argsort(slots)
    places = torch.searchsorted(slots[order], wanted)
    if int(places.max()) >= slots.shape[0]:
        raise LookupError("a captured token's slot is not in this step's batch")
    rows = order[places]
    if not torch.equal(slots[rows], wanted):
        raise LookupError("a captured token's slot is not in this step's batch")
    return rows
