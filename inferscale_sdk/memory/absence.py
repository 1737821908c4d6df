"""Proof that deleted facts are gone: every place that could hold them is looked into."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import EngineError, NotFoundError, StoreError
from inferscale_sdk.facts.base import FactStore, KeyState
from inferscale_sdk.ingest.orphans import key_pages
from inferscale_sdk.memory.collecting import orphans_of
from inferscale_sdk.memory.residue import database_files, residue
from inferscale_sdk.recall.base import RECALL_FILE
from inferscale_sdk.tiers import folder as kv_files
from inferscale_sdk.types import Namespace

__all__ = ["Evidence", "Place", "gather", "has_kv_in", "look"]

_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """What must be gone, written down before it is deleted.

    Args:
        fact_ids: The facts.
        scope: Whose.
        texts: Every text, speaker, source and metadata they ever had.
        keys: Segments of these facts, of facts encoded behind them, and whatever else waited to
            be forgotten.
        erased: Those of the facts that were erased before; only their KV can be left.
    """

    fact_ids: tuple[str, ...]
    scope: Namespace
    texts: tuple[str, ...]
    keys: tuple[str, ...]
    erased: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """One place that was looked into.

    Args:
        name: The place.
        left: How many traces are there.
        checked: Whether it could be looked into.
        note: What was found, or why it was not looked into.
    """

    name: str
    left: int = 0
    checked: bool = True
    note: str = ""


def gather(
    store: FactStore, fact_ids: Sequence[str], scope: Namespace, *, dropped: bool = False
) -> Evidence:
    """What deleting these facts must remove. Facts deleted softly before count, too.

    Captures that were asked for and never recorded may be these facts': who asked may have died in
    between. They are put on the forget ledger; if one is under way, its fact is encoded again.

    Args:
        store: The fact store.
        fact_ids: The facts.
        scope: Whose.
        dropped: Put keys on it, too, that some server has dropped before: these facts' may be among
            them, and the server at hand may be another one.

    Raises:
        NotFoundError: The scope never held one of them.
    """
    texts: dict[str, None] = {}
    erased = set()
    for fact_id in fact_ids:
        for event in store.history(fact_id, scope):
            texts.update(dict.fromkeys(t for t in (event.old_text, event.new_text) if t))
        try:
            fact = store.get(fact_id, scope, include_deleted=True)
        except NotFoundError:  # it has a history
            erased.add(fact_id)
            continue
        about = json.dumps(dict(fact.metadata), ensure_ascii=False) if fact.metadata else ""
        texts.update(dict.fromkeys(t for t in (fact.speaker, fact.source, about) if t))
    store.queue_forget(orphans_of(store, grace_seconds=0.0))
    if dropped:
        store.queue_forget(store.dropped_keys(_ALL))
    keys = dict.fromkeys([*store.keys_behind(list(fact_ids)), *store.forget_queue(_ALL)])
    return Evidence(tuple(fact_ids), scope, tuple(texts), tuple(keys), frozenset(erased))


def has_kv_in(store: FactStore, folder: Path) -> bool:
    """Whether a folder holds any KV of this store: of facts there are, or of deleted ones.

    Raises:
        StoreError: The folder cannot be read.
    """
    if kv_files.locate(folder, store.forget_queue(_ALL)):
        return True
    return any(
        kv_files.locate(folder, keys)
        for profile in store.profiles()
        for keys in key_pages(store, profile)
    )


def look(
    evidence: Evidence,
    store: FactStore,
    *,
    path: Path,
    engine: Engine | None = None,
    kv_folder: Path | None = None,
) -> list[Place]:
    """Look into every place that could hold a trace.

    Segments that a remaining fact with the same words shares are that fact's, and may stay.

    Args:
        evidence: What must be gone.
        store: The fact store.
        path: The folder of store and index.
        engine: The server to ask; its tiers are not looked into without.
        kv_folder: A folder of KV on this machine.
    """
    states = store.key_states(evidence.keys)
    keys = [key for key in evidence.keys if states.get(key) is not KeyState.IN_USE]
    places = [
        _facts(evidence, store),
        _history(evidence, store),
        _ledger(evidence, store),
        *_index(evidence, path / RECALL_FILE),
        _files(evidence, path),
        _server(keys, states, engine),
    ]
    if kv_folder is not None:
        places.append(_folder(keys, kv_folder))
    return places


def _facts(evidence: Evidence, store: FactStore) -> Place:
    left = 0
    for fact_id in evidence.fact_ids:
        try:
            store.get(fact_id, evidence.scope, include_deleted=True)
        except NotFoundError:
            continue
        left += 1
    return Place("facts", left)


def _history(evidence: Evidence, store: FactStore) -> Place:
    left = 0
    for fact_id in evidence.fact_ids:
        try:
            events = store.history(fact_id, evidence.scope)
        except NotFoundError:
            continue
        left += sum(bool(event.old_text or event.new_text) for event in events)
    return Place("history", left, note="events with text" if left else "")


def _ledger(evidence: Evidence, store: FactStore) -> Place:
    return Place("KV ledger", len(store.keys_behind(evidence.fact_ids)))


def _index(evidence: Evidence, path: Path) -> Iterator[Place]:
    """Items, vectors and postings; also those that belong to no item any more."""
    questions = {
        "recall items": (
            "SELECT count(*) FROM item WHERE fact_id IN (SELECT value FROM json_each(?))",
            True,
        ),
        "recall vectors": (
            "SELECT count(*) FROM vector WHERE item_pk NOT IN (SELECT pk FROM item)",
            False,
        ),
        "recall postings": (
            "SELECT count(*) FROM lexicon WHERE rowid NOT IN (SELECT pk FROM item)",
            False,
        ),
    }
    if not path.exists():
        yield from (Place(name, note="no index") for name in questions)
        return
    ids = json.dumps(evidence.fact_ids)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            for name, (sql, by_id) in questions.items():
                row = database.execute(sql, (ids,) if by_id else ()).fetchone()
                yield Place(name, int(row[0]))
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _files(evidence: Evidence, path: Path) -> Place:
    found = residue(database_files(path), evidence.texts)
    note = ", ".join(f"{name}: {n}" for name, n in found.items())
    if found:
        note += "; end what still reads the store, and run this again"
    return Place("bytes of the files", sum(found.values()), note=note)


def _server(keys: list[str], states: dict[str, KeyState], engine: Engine | None) -> Place:
    name = "KV on the server"
    if engine is None:
        waiting = sum(states.get(key) is KeyState.TO_FORGET for key in keys)
        if not waiting:
            return Place(name, note="nothing was ever stored")
        return Place(
            name,
            checked=False,
            note=f"no server named; {waiting} keys wait for one: inferscale kv gc --base-url URL",
        )
    try:
        info = engine.info()
        if keys and not info.fingerprint:
            return Place(name, checked=False, note=info.reason)
        found = engine.locate(keys)
    except EngineError as error:
        return Place(name, checked=False, note=f"{type(error).__name__}: {error}")
    where = sorted({place for places in found.values() for place in places})
    undropped = [key for key in keys if states.get(key) is KeyState.TO_FORGET and key not in found]
    if undropped:
        # It did not take their deletion: some tier may have them that it cannot ask now.
        where.append(f"{len(undropped)} not dropped yet")
    note = ", ".join(where) or f"{len(keys)} keys looked for"
    return Place(name, len(found) + len(undropped), note=note)


def _folder(keys: list[str], folder: Path) -> Place:
    found = kv_files.locate(folder, keys)
    where = sorted({place for places in found.values() for place in places})
    return Place(
        f"KV folder {folder}", len(found), note=", ".join(where) or f"{len(keys)} keys looked for"
    )
