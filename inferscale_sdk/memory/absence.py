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
from inferscale_sdk.facts.base import FACTS_FILE, FactStore, KeyState
from inferscale_sdk.ingest.orphans import key_pages
from inferscale_sdk.memory.collecting import orphans_of
from inferscale_sdk.memory.residue import files_below, residue
from inferscale_sdk.recall.base import RECALL_FILE
from inferscale_sdk.tiers import folder as kv_files
from inferscale_sdk.types import Namespace

__all__ = ["Evidence", "Place", "Whereabouts", "gather", "look"]

_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """What must be gone, written down before it is deleted.

    Args:
        fact_ids: The facts.
        scope: Whose.
        texts: Every text, speaker, source and metadata they ever had.
        recorded: Segments of these facts, and of facts encoded behind them.
        keys: The same, whatever else waited to be forgotten, and what was dropped before.
        erased: Those of the facts that were erased before; only their KV can be left.
    """

    fact_ids: tuple[str, ...]
    scope: Namespace
    texts: tuple[str, ...]
    recorded: tuple[str, ...]
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


def gather(store: FactStore, fact_ids: Sequence[str], scope: Namespace) -> Evidence:
    """What deleting these facts must remove. Facts deleted softly before count, too.

    Captures that were asked for and never recorded may be these facts': who asked may have died in
    between. They are put on the forget ledger; if one is under way, its fact is encoded again. So
    are keys that some server has dropped before: the place at hand may be another one.

    Args:
        store: The fact store.
        fact_ids: The facts.
        scope: Whose.

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
    store.queue_forget(store.dropped_keys(_ALL))
    recorded = store.keys_behind(list(fact_ids))
    keys = dict.fromkeys([*recorded, *store.forget_queue(_ALL)])
    return Evidence(
        tuple(fact_ids), scope, tuple(texts), tuple(recorded), tuple(keys), frozenset(erased)
    )


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where KV may lie, as far as anybody said.

    Args:
        engine: A server; it is asked about all its tiers.
        folder: A folder of KV on this machine.
    """

    engine: Engine | None
    folder: Path | None

    def found(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that lie there.

        Raises:
            EngineError: The server cannot be asked.
            StoreError: The folder cannot be read.
        """
        found: set[str] = set()
        if self.engine is not None and keys:
            found.update(self.engine.locate(keys))
        if self.folder is not None:
            found.update(kv_files.locate(self.folder, keys))
        return found

    def has_kv_of(self, store: FactStore) -> bool:
        """Whether any KV of this store lies there: of facts there are, or of deleted ones.

        Raises:
            EngineError: The server cannot be asked.
            StoreError: The folder cannot be read.
        """
        if self.found(store.forget_queue(_ALL)):
            return True
        return any(
            self.found(keys) for profile in store.profiles() for keys in key_pages(store, profile)
        )


def look(
    evidence: Evidence,
    store: FactStore,
    *,
    path: Path,
    where: Whereabouts,
    no_server: bool = False,
) -> list[Place]:
    """Look into every place that could hold a trace.

    Segments that a remaining fact with the same words shares are that fact's, and may stay.

    Args:
        evidence: What must be gone.
        store: The fact store.
        path: The folder of store and index.
        where: KV may lie.
        no_server: There is none to ask.
    """
    states = store.key_states(evidence.keys)
    keys = [key for key in evidence.keys if states.get(key) is not KeyState.IN_USE]
    places = [
        _facts(evidence, store),
        _history(evidence, store),
        _ledger(evidence, store),
        *_index(evidence, path / RECALL_FILE),
        _files(evidence, path, where.folder),
        _server(keys, states, where.engine, no_server=no_server),
    ]
    if where.folder is not None:
        places.append(_folder(keys, where.folder))
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


def _files(evidence: Evidence, path: Path, kv_folder: Path | None) -> Place:
    databases = [path / FACTS_FILE, path / RECALL_FILE]
    found = residue(files_below(path, without=kv_folder), evidence.texts, databases=databases)
    note = ", ".join(f"{file.relative_to(path)}: {n}" for file, n in found.items())
    if found:
        note += "; end what still reads the store, remove copies of it, and run this again"
    return Place("bytes of the files", sum(found.values()), note=note)


def _server(
    keys: list[str], states: dict[str, KeyState], engine: Engine | None, *, no_server: bool
) -> Place:
    name = "KV on the server"
    if engine is None and (no_server or not keys):
        return Place(name, note="there is no server" if no_server else "no KV is known")
    if engine is None:
        waiting = sum(states.get(key) is KeyState.TO_FORGET for key in keys)
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
    copies = kv_files.copies(folder, keys)
    where = sorted({place for places in found.values() for place in places})
    where += [f"copy {path.relative_to(folder)}" for path in copies]
    note = ", ".join(where) or f"{len(keys)} keys looked for"
    return Place(f"KV folder {folder}", len(found) + len(copies), note=note)
