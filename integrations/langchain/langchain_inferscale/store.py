"""``InferScaleStore``: a LangGraph store whose items can be recalled and injected."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inferscale_sdk import AsyncMemory, Fact, Memory, MissingDependency, NamespaceError
from inferscale_sdk.types import NewFact
from langchain_inferscale._scope import Ids, merge_ids, object_ids, run_ids
from langchain_inferscale._setup import memory_of
from langchain_inferscale._store_match import matches, namespace_matches, sort_key

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        get_text_at_path,
        tokenize_path,
        validate_op_namespace,
    )
except ImportError as error:
    raise MissingDependency("langgraph", "agents", "InferScaleStore") from error

__all__ = ["InferScaleStore"]

_TEXT_FIELDS = ("text", "content", "memory", "fact")
_MAX_TEXT_CHARS = 8000
_REFRESH_SHARE = 0.25
"""A read renews an item's life only after this share of it has passed: renewing writes."""

# Keys of a fact's metadata. The path is kept label by label, so that a prefix is compared whole
# label by whole label: ("users", "al") is no prefix of ("users", "alice").
_KEY, _VALUE, _DEPTH, _EXPIRES, _TTL, _INDEXED = (
    "store_key",
    "store_value",
    "store_depth",
    "store_expires",
    "store_ttl",
    "store_indexed",
)


class InferScaleStore(BaseStore):
    """Items as facts: found by meaning, encoded ahead of time, injected by their handles.

    Every item belongs to one user, and no operation crosses users. Who that is is said by
    ``user_id``, by the label at ``user_label`` of every namespace, or by the run's configuration.

    Args:
        memory: Where items are kept; by default the process's own memory.
        user_label: Which label of a namespace is the user's id, e.g. ``1`` for
            ``("memories", "alice")``. Searches and listings must then name it.
        index: Fields that items are found by, by default ``text``, ``content``, ``memory`` or
            ``fact``, else the whole value.
        ttl: ``default_ttl`` in minutes and ``refresh_on_read``.
        user_id: Whose items, if this object serves one user only.
        agent_id: Of which agent.
        app_id: Of which application.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: Memory | AsyncMemory | None = None,
        *,
        user_label: int | None = None,
        index: Sequence[str] | None = None,
        ttl: TTLConfig | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        app_id: str | None = None,
    ) -> None:
        if user_label is not None and user_id is not None:
            raise NamespaceError("give user_label or user_id: either says whose items these are")
        self._given = memory
        self._user_label = user_label
        self._index = list(index) if index is not None else None
        self.ttl_config = ttl
        self.user_id = user_id
        self.agent_id = agent_id
        self.app_id = app_id

    @property
    def memory(self) -> Memory:
        """Where items are kept; give it to the :class:`ChatInferScale` that reads them."""
        return memory_of(self._given)

    def handles(self, items: Iterable[Item]) -> list[str]:
        """Handles of items, in their order, to be put into a prompt for :class:`ChatInferScale`."""
        facts = (self._find_one(item.namespace, item.key) for item in items)
        return [handle.marker for handle in self.memory.mint([f for f in facts if f is not None])]

    def sweep_ttl(self) -> int:
        """Delete expired items of the user at hand; returns how many there were."""
        scope = self._owner(())
        gone = [fact for fact in self._all(scope) if _expired(fact)]
        for fact in gone:
            self.memory.delete(fact.id, **scope)
        return len(gone)

    # -- operations ------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: first what is read, in order, then what is written.

        Of several writes to one item the last one counts.
        """
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            validate_op_namespace(op)
            match op:
                case GetOp():
                    results.append(self._get(op))
                case SearchOp():
                    results.append(list(self._search(op)))
                case ListNamespacesOp():
                    results.append(self._list(op))
                case PutOp():
                    puts[op.namespace, op.key] = op
                    results.append(None)
                case _:
                    raise ValueError(f"unknown operation {type(op).__name__}")
        for put in puts.values():
            self._put(put)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async twin of :meth:`batch`."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _get(self, op: GetOp) -> Item | None:
        fact = self._find_one(op.namespace, op.key)
        if fact is None:
            return None
        self._touch([fact], op.refresh_ttl, self._owner(op.namespace))
        return _item(fact)

    def _put(self, op: PutOp) -> None:
        scope = self._owner(op.namespace)
        there = self._find_one(op.namespace, op.key, expired=True)
        if op.value is None:
            if there is not None:
                self.memory.delete(there.id, **scope)
            return
        value = json.loads(json.dumps(dict(op.value)))
        metadata = {
            **_path(op.namespace),
            _DEPTH: len(op.namespace),
            _KEY: op.key,
            _VALUE: value,
            _INDEXED: op.index is not False,
        }
        if op.ttl is not None:
            metadata |= {_TTL: op.ttl, _EXPIRES: time.time() + op.ttl * 60}
        text = self._text(value, op.index)
        if there is None:
            group = "/".join(op.namespace)
            self.memory.add_facts([NewFact(text, group, metadata=metadata)], **scope)
        else:
            self.memory.update(there.id, text=text, metadata=metadata, **scope)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        scope = self._owner(op.namespace_prefix)
        stop = op.offset + op.limit
        if op.query:
            found = self._by_meaning(op, scope, stop)
        else:
            facts = [f for f in self._all(scope, op.namespace_prefix) if _wanted(f, op.filter)]
            found = [(fact, None) for fact in sorted(facts, key=sort_key)]
        shown = found[op.offset : stop]
        self._touch([fact for fact, _ in shown], op.refresh_ttl, scope)
        return [_search_item(fact, score) for fact, score in shown]

    def _by_meaning(self, op: SearchOp, scope: Ids, stop: int) -> list[tuple[Fact, float | None]]:
        assert op.query is not None
        filters = {**_path(op.namespace_prefix), _DEPTH: {"gte": 0}, _INDEXED: True}
        top_k = stop
        while True:
            hits = self.memory.search(op.query, top_k=top_k, filters=filters, **scope)
            found: list[tuple[Fact, float | None]] = [
                (hit.fact, hit.similarity if hit.similarity is not None else hit.score)
                for hit in hits
                if _wanted(hit.fact, op.filter)
            ]
            # The value's own conditions are checked here: look further while they thin out hits.
            if len(found) >= stop or len(hits) < top_k:
                return found
            top_k *= 4

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        prefix: tuple[str, ...] = ()
        for condition in conditions:
            if condition.match_type == "prefix":
                prefix = condition.path
        facts = [fact for fact in self._all(self._owner(prefix)) if not _expired(fact)]
        paths = {_namespace(fact) for fact in facts}
        kept = {
            path[: op.max_depth] if op.max_depth is not None else path
            for path in paths
            if all(namespace_matches(condition, path) for condition in conditions)
        }
        return sorted(kept)[op.offset : op.offset + op.limit]

    # -- inside ----------------------------------------------------------------------------

    def _owner(self, namespace: tuple[str, ...]) -> Ids:
        """Whose items ``namespace`` is about.

        Raises:
            NamespaceError: The label of the user is missing or a wildcard.
        """
        ids = object_ids(self)
        if self._user_label is None:
            return merge_ids(ids, run_ids())
        try:
            user = namespace[self._user_label]
        except IndexError:
            user = "*"
        if user == "*":
            raise NamespaceError(
                f"the namespace {namespace!r} has no label {self._user_label}, which names the "
                "user; nothing is ever looked up across users"
            )
        return merge_ids(ids, {"user_id": user}, run_ids())

    def _all(self, scope: Ids, prefix: tuple[str, ...] = ()) -> list[Fact]:
        return self.memory.get_all(filters={**_path(prefix), _DEPTH: {"gte": 0}}, **scope)

    def _find_one(
        self, namespace: tuple[str, ...], key: str, *, expired: bool = False
    ) -> Fact | None:
        filters = {**_path(namespace), _DEPTH: len(namespace), _KEY: key}
        facts = self.memory.get_all(filters=filters, limit=1, **self._owner(namespace))
        return next((fact for fact in facts if expired or not _expired(fact)), None)

    def _touch(self, facts: Sequence[Fact], refresh: bool, scope: Ids) -> None:
        """Renew the lives of items that were read."""
        now = time.time()
        for fact in facts if refresh else ():
            ttl = fact.metadata.get(_TTL)
            if ttl is None or fact.metadata[_EXPIRES] - now > ttl * 60 * (1 - _REFRESH_SHARE):
                continue
            renewed = {**fact.metadata, _EXPIRES: now + ttl * 60}
            self.memory.update(fact.id, metadata=renewed, **scope)

    def _text(self, value: Mapping[str, Any], index: Any) -> str:
        """What an item is found by, and what is injected for it."""
        paths = index if isinstance(index, list) else self._index
        if paths:
            texts = [t for path in paths for t in get_text_at_path(value, tokenize_path(path))]
        else:
            texts = [value[f] for f in _TEXT_FIELDS if isinstance(value.get(f), str)][:1]
        text = "\n".join(text for text in texts if text.strip())
        return (text or json.dumps(value, ensure_ascii=False))[:_MAX_TEXT_CHARS]


def _path(namespace: tuple[str, ...]) -> dict[str, str]:
    return {f"store_ns{i}": label for i, label in enumerate(namespace)}


def _namespace(fact: Fact) -> tuple[str, ...]:
    return tuple(fact.metadata[f"store_ns{i}"] for i in range(fact.metadata[_DEPTH]))


def _expired(fact: Fact) -> bool:
    expires = fact.metadata.get(_EXPIRES)
    return expires is not None and expires <= time.time()


def _wanted(fact: Fact, conditions: Mapping[str, Any] | None) -> bool:
    return not _expired(fact) and matches(fact.metadata[_VALUE], conditions or {})


def _item(fact: Fact) -> Item:
    return Item(
        value=dict(fact.metadata[_VALUE]),
        key=fact.metadata[_KEY],
        namespace=_namespace(fact),
        created_at=fact.created_at,
        updated_at=fact.updated_at,
    )


def _search_item(fact: Fact, score: float | None) -> SearchItem:
    return SearchItem(
        namespace=_namespace(fact),
        key=fact.metadata[_KEY],
        value=dict(fact.metadata[_VALUE]),
        created_at=fact.created_at,
        updated_at=fact.updated_at,
        score=score,
    )
