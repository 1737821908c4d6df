"""Facts and messages become token segments.

A served prompt is ``[preamble][fact]…[fact][live fact]…[rest]``. Each part is tokenised by itself
and the concatenation is the prompt, whether or not anything is injected, so that injection never
changes which tokens the model is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from inferscale_sdk.errors import ConfigurationError, ContextOverflow, NamespaceError
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.kv.key import namespace_secret, owner_tag, segment_key
from inferscale_sdk.prompt.base import (
    ChatTokenizer,
    EncodePlan,
    PlannedSegment,
    PromptPlan,
    Reading,
)
from inferscale_sdk.prompt.cut import (
    CutPrompt,
    as_mappings,
    cut_prompt,
    defuse,
    defuse_message,
    place_memory,
    whole_prompt,
)
from inferscale_sdk.prompt.frame import DEFAULT_FRAME, Frame
from inferscale_sdk.prompt.order import FactOrder, arrange
from inferscale_sdk.protocol import MAX_SEGMENTS, CaptureSpan, EncodeOp, salt_suffix
from inferscale_sdk.types import Fact, Message, Namespace

__all__ = ["Planner"]

Overflow = Literal["raise", "drop_facts"]

# Templates refuse a conversation in which nobody asks; what stands here is never kept.
_SOMEBODY_ASKS = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True)
class _Line:
    """A fact's line, tokenised, with the key of its KV if there is any for exactly this line."""

    fact: Fact
    token_ids: tuple[int, ...]
    key: str | None


class Planner:
    """Plans requests and encodings for one model and one fact store. Safe for several threads.

    Args:
        tokenizer: The model's tokenizer and chat template.
        frame: The text around facts.
        store_secret: ``FactStore.secret``; keys and salts derive from it, so that nobody can guess
            those of another namespace or store.

    Raises:
        ConfigurationError: The secret is shorter than 16 bytes.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, *, frame: Frame = DEFAULT_FRAME, store_secret: bytes
    ) -> None:
        if len(store_secret) < 16:
            raise ConfigurationError(
                f"the store's secret has {len(store_secret)} bytes, at least 16 are needed"
            )
        self.tokenizer = tokenizer
        self.frame = frame
        self._store_secret = store_secret

    def profile(self, fingerprint: str, strategy: str) -> str:
        """What KV depends on besides the facts: the ``profile`` of encoding records."""
        return f"{fingerprint}/{self.frame.version}/{strategy}"

    def count_tokens(self, fact: Fact) -> int:
        """Tokens of the fact's line in a prompt."""
        return len(self._line_ids(fact))

    def plan(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        facts: Sequence[Fact],
        encodings: Mapping[str, EncodingRecord],
        scope: Namespace,
        fingerprint: str,
        max_model_len: int,
        reserve_tokens: int,
        inject: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        overflow: Overflow = "raise",
        order: FactOrder = "best-last",
        seq: int = -1,
    ) -> PromptPlan:
        """Plan one request.

        Facts that have KV come first, in the wanted order; the others follow as live text. With
        ``inject=False`` the tokens are the same and nothing is injected.

        Args:
            messages: The conversation; content is text.
            facts: The recalled facts, the most relevant last. A fact given twice counts once.
            encodings: Encoding records by fact id, under :meth:`profile`.
            scope: Whose request this is.
            fingerprint: The model's fingerprint.
            max_model_len: The model's context length in tokens.
            reserve_tokens: Kept free for the answer, usually its ``max_tokens``.
            inject: Whether to use stored KV.
            tools: Tool schemas for the chat template.
            template_kwargs: Further variables of the chat template.
            overflow: ``drop_facts`` leaves out the least relevant facts when the prompt is too
                long and names them in the plan; ``raise`` refuses.
            order: In which facts stand in the prompt.
            seq: ``FactStore.last_seq()`` at the time of recall.

        Raises:
            NamespaceError: A fact is not covered by ``scope``.
            ContextOverflow: The prompt does not fit.
            ConfigurationError: The chat template refuses the conversation.
        """
        for fact in facts:
            if not scope.covers(fact.namespace):
                raise NamespaceError(
                    f"fact {fact.id} of {fact.namespace.canonical()} must not be shown in "
                    f"{scope.canonical()}; recall facts within the request's own namespace"
                )
        chat, kwargs = as_mappings(messages), dict(template_kwargs or {})
        limit = max_model_len - max(reserve_tokens, 1)
        secret = namespace_secret(self._store_secret, scope.partition)
        lines = [self._line(fact, encodings.get(fact.id)) for fact in _last_of_each(facts)]
        dropped: list[str] = []
        if lines:
            cut = cut_prompt(self.tokenizer, self.frame, chat, tools=tools, template_kwargs=kwargs)
            excess = _size(cut, lines) - limit
            while overflow == "drop_facts" and excess > 0 and lines:
                excess -= len(lines[0].token_ids)
                dropped.append(lines.pop(0).fact.id)
            if lines:
                _require_fit(_size(cut, lines), limit, max_model_len)
                plan = self._framed(
                    cut,
                    chat,
                    _arranged(lines, order),
                    secret=secret,
                    fingerprint=fingerprint,
                    inject=inject,
                )
                return _with(plan, dropped=tuple(dropped), seq=seq)
        ids = whole_prompt(self.tokenizer, chat, tools=tools, template_kwargs=kwargs)
        _require_fit(len(ids), limit, max_model_len)
        plan = PromptPlan(
            token_ids=ids,
            cache_salt=self._salt(secret, fingerprint, "text"),
            messages=self._readable(messages),
            fingerprint=fingerprint,
        )
        return _with(plan, dropped=tuple(dropped), seq=seq)

    def plan_encode(
        self,
        window: Sequence[Fact],
        facts: Sequence[Fact],
        *,
        fingerprint: str,
        partition: str,
        capture_preamble: bool,
        messages: Sequence[Message | Mapping[str, Any]] = (),
        max_model_len: int | None = None,
        readings: Mapping[str, Reading] | None = None,
        nonce: str = "",
    ) -> EncodePlan:
        """Plan the encoding of ``facts`` behind ``window``, in one request.

        The prompt is the preamble as serving would have it, the window's lines and the facts'
        lines. Each fact is captured in the context of everything before it, earlier facts included.

        Args:
            window: What the facts are encoded behind; their KV is discarded.
            facts: What to capture, in order.
            fingerprint: The model's fingerprint.
            partition: ``Namespace.partition`` of all these facts.
            capture_preamble: Whether to keep the preamble's KV as well.
            messages: The application's own system message, if it has a fixed one.
            max_model_len: The model's context length, to notice a window that does not fit.
            readings: First readings by fact id: the mean of these and this one is kept.
            nonce: What is captured is a first reading, and its keys are this run's alone.

        Raises:
            NamespaceError: A fact belongs to another partition.
            ConfigurationError: ``facts`` is empty and the preamble is not captured either.
            ContextOverflow: Longer than ``max_model_len`` less the two tokens that an encode
                request generates.
        """
        for fact in (*window, *facts):
            if fact.namespace.partition != partition:
                raise NamespaceError(
                    f"fact {fact.id} belongs to partition {fact.namespace.partition}, "
                    f"it must not be encoded among those of {partition}"
                )
        secret = namespace_secret(self._store_secret, partition)
        ids = list(self._preamble(messages))
        captures, context, contexts = [], [fact.id for fact in window], []
        names: list[str] = []
        if capture_preamble:
            key = self._key(fingerprint, secret, (), ids)
            captures.append(CaptureSpan(key=key, start=0, stop=len(ids)))
        for fact in window:
            ids += self._line_ids(fact)
        for fact in facts:
            own = self._line_ids(fact)
            first = (readings or {}).get(fact.id)
            beside, name, earlier = (
                (first.key, first.name, first.before) if first else (None, "", ())
            )
            if nonce:
                names.append(self._key(fingerprint, secret, ids, own, "first"))
                name = f"first {nonce}"
            key = self._key(fingerprint, secret, ids, own, name)
            stop = len(ids) + len(own)
            captures.append(CaptureSpan(key=key, start=len(ids), stop=stop, beside=beside))
            contexts.append(tuple(dict.fromkeys((*context, *(f.id for f in earlier)))))
            context.append(fact.id)
            ids += own
        if not captures:
            raise ConfigurationError("an encoding needs at least one fact, or the preamble")
        if max_model_len is not None:
            _require_fit(len(ids), max_model_len - 2, max_model_len)
        return EncodePlan(
            token_ids=tuple(ids),
            op=EncodeOp(fingerprint=fingerprint, captures=tuple(captures), owner=owner_tag(secret)),
            fact_ids=tuple(fact.id for fact in facts),
            context_fact_ids=tuple(contexts),
            captures_preamble=capture_preamble,
            reading_names=tuple(names),
        )

    # -- parts -----------------------------------------------------------------------------

    def _preamble(self, messages: Sequence[Message | Mapping[str, Any]]) -> tuple[int, ...]:
        chat = as_mappings(messages)
        if all(message.get("role") == "system" for message in chat):
            chat.append(dict(_SOMEBODY_ASKS))
        return cut_prompt(self.tokenizer, self.frame, chat, tools=None, template_kwargs={}).before

    def _line_ids(self, fact: Fact) -> list[int]:
        return self.tokenizer.encode_plain(self.frame.line(fact))

    def _line(self, fact: Fact, record: EncodingRecord | None) -> _Line:
        ids = tuple(self._line_ids(fact))
        fresh = (
            record is not None and record.version == fact.version and record.n_tokens == len(ids)
        )
        return _Line(fact, ids, record.key if fresh and record is not None else None)

    def _framed(
        self,
        cut: CutPrompt,
        chat: Sequence[Mapping[str, Any]],
        lines: Sequence[_Line],
        *,
        secret: bytes,
        fingerprint: str,
        inject: bool,
    ) -> PromptPlan:
        stored = [line for line in lines if line.key is not None][: MAX_SEGMENTS - 1]
        placed = {line.fact.id for line in stored}
        live = [line for line in lines if line.fact.id not in placed]
        ordered = [*stored, *live]
        token_ids = [*cut.before, *(i for line in ordered for i in line.token_ids), *cut.after]
        segments: list[PlannedSegment] = []
        if inject and stored:
            key = self._key(fingerprint, secret, (), cut.before)
            segments.append(PlannedSegment(key, len(cut.before), "preamble"))
            segments += [
                PlannedSegment(line.key, len(line.token_ids), "fact", line.fact.id)
                for line in stored
                if line.key is not None
            ]
        keys = [segment.key for segment in segments]
        safe = [defuse_message(message, self.tokenizer) for message in chat]
        text = defuse("".join(self.frame.line(line.fact) for line in ordered), self.tokenizer)
        return PromptPlan(
            token_ids=tuple(token_ids),
            segments=tuple(segments),
            cache_salt=self._salt(secret, fingerprint, salt_suffix(keys) if keys else "text"),
            messages=tuple(place_memory(self.frame, safe, text, in_system=cut.in_system)),
            fact_ids=tuple(line.fact.id for line in ordered),
            live_fact_ids=tuple(line.fact.id for line in (live if segments else ordered)),
            memory_tokens=sum(len(line.token_ids) for line in ordered),
            fingerprint=fingerprint,
            owner=owner_tag(secret),
        )

    def _readable(
        self, messages: Sequence[Message | Mapping[str, Any]]
    ) -> tuple[Message | Mapping[str, Any], ...]:
        """The conversation for a server that tokenises it; as given where that is harmless."""
        chat = as_mappings(messages)
        safe = [defuse_message(message, self.tokenizer) for message in chat]
        return tuple(
            given if same == changed else changed
            for given, same, changed in zip(messages, chat, safe, strict=True)
        )

    def _key(
        self,
        fingerprint: str,
        secret: bytes,
        context: Sequence[int],
        own: Sequence[int],
        reading: str = "",
    ) -> str:
        return segment_key(
            fingerprint=fingerprint,
            frame_version=self.frame.version,
            secret=secret,
            context_ids=context,
            own_ids=own,
            reading=reading,
        )

    def _salt(self, secret: bytes, fingerprint: str, suffix: str) -> str:
        """The cache salt: injecting and plain requests of one namespace never share cached blocks.

        What follows an injected block was computed from KV that was made in another context.
        """
        who = hashlib.blake2b(
            f"{self.frame.version}\0{fingerprint}".encode(), key=secret, digest_size=16
        ).hexdigest()
        return f"ifs1:{who}:{suffix}"


def _last_of_each(facts: Sequence[Fact]) -> list[Fact]:
    last = {fact.id: i for i, fact in enumerate(facts)}
    return [fact for i, fact in enumerate(facts) if last[fact.id] == i]


def _arranged(lines: Sequence[_Line], order: FactOrder) -> list[_Line]:
    by_id = {line.fact.id: line for line in lines}
    return [by_id[fact.id] for fact in arrange([line.fact for line in lines], order)]


def _size(cut: CutPrompt, lines: Sequence[_Line]) -> int:
    return len(cut.before) + sum(len(line.token_ids) for line in lines) + len(cut.after)


def _require_fit(n_tokens: int, limit: int, max_model_len: int) -> None:
    if n_tokens > limit:
        raise ContextOverflow(
            n_tokens + max_model_len - limit,
            max_model_len,
            f"{max_model_len - limit} of them are kept for the answer; recall fewer facts, "
            "shorten the conversation, lower max_tokens, or plan with overflow='drop_facts'",
        )


def _with(plan: PromptPlan, *, dropped: tuple[str, ...], seq: int) -> PromptPlan:
    return replace(plan, dropped_fact_ids=dropped, seq=seq)
