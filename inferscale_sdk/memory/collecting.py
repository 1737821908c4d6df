"""Taking out stored KV that nobody needs, and noting what is gone: ``inferscale kv gc``.

A folder or server may serve several stores. What the ledger of this store names, or once named, is
ours, and so is a segment whose file bears the tag of one of our owners; everything else is unknown,
may be another store's, and is only counted unless the caller asks for more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.errors import EngineError
from inferscale_sdk.facts.base import FactStore, KeyState
from inferscale_sdk.ingest.forgetting import send_forgets
from inferscale_sdk.ingest.orphans import DAMAGED_ONLY, GRACE_SECONDS, PAGE, key_pages
from inferscale_sdk.kv.key import namespace_secret, owner_tag
from inferscale_sdk.memory.write_verbs import every_owner
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers import folder as kv_files

if TYPE_CHECKING:
    from inferscale_sdk.kv.cipher import Cipher

__all__ = ["GcReport", "collect_folder", "collect_server", "orphans_of"]


@dataclass(frozen=True, slots=True)
class GcReport:
    """What was found, and what was done about it.

    Args:
        orphans: Segments captured for this store that no fact names.
        waiting: Keys of deleted facts that still waited to be dropped.
        lost: Records whose segment is gone; their facts are encoded again.
        dropped: Segments of this store removed.
        unknown: Segments that this store does not know; of a folder only.
        unknown_bytes: Their size.
        removed: Unknown segments removed.
        removed_bytes: Their size.
        unfinished: Files of writers that died in the middle; of a folder only, and removed.
    """

    orphans: int = 0
    waiting: int = 0
    lost: int = 0
    dropped: int = 0
    unknown: int = 0
    unknown_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    unfinished: int = 0


def collect_server(
    store: FactStore,
    engine: Engine,
    *,
    dry_run: bool = False,
    grace_seconds: float = GRACE_SECONDS,
) -> GcReport:
    """Compare a store's ledger with a server.

    A server lists its keys to nobody, so segments that are unknown to this store stay unseen.

    Raises:
        EngineError: The server cannot be asked, or does not take the question.
    """
    info = engine.info()
    if not info.can_inject:
        raise EngineError(f"the server cannot be compared with the ledger: {info.reason}")
    orphans = orphans_of(store, grace_seconds)
    waiting = store.forget_queue(1_000_000)
    dropped = 0
    if not dry_run:
        store.queue_forget(orphans)
        dropped = send_forgets(store, engine)
    profiles = [name for name in store.profiles() if _model_of(name) == info.fingerprint]
    lost = _lost(store, profiles, engine.locate, dry_run=dry_run)
    return GcReport(len(orphans), len(waiting), lost, dropped)


def collect_folder(
    store: FactStore,
    root: Path,
    *,
    dry_run: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    unused_seconds: float | None = None,
    cipher: Cipher | None = None,
) -> GcReport:
    """Compare a store's ledger with a folder of KV.

    Keys stay on the ledger of keys to forget: a server may have them in memory. Records count as
    lost only for models that the folder has segments of, since other models' KV may lie elsewhere.

    Args:
        store: The ledger.
        root: The folder.
        dry_run: Change nothing.
        grace_seconds: Keys noted more recently may belong to a request under way.
        unused_seconds: Remove unknown segments that were not written or used for so long. They
            may be another store's, which would encode them again. ``None`` keeps them.
        cipher: Opens encrypted segments, to see whose they are.

    Raises:
        StoreError: The folder cannot be read, or a file cannot be removed.
    """
    orphans = orphans_of(store, grace_seconds)
    waiting = store.forget_queue(1_000_000)
    strays = list(_unknown(store, root))
    tags = _owner_tags(store) if strays else set()
    ours = [e for e in strays if kv_files.owner_of(e, cipher=cipher) in tags]
    our_paths = {entry.path for entry in ours}
    unknown = [entry for entry in strays if entry.path not in our_paths]
    orphans += [entry.key for entry in _unused(ours, grace_seconds)]
    dropped = 0
    if not dry_run:
        store.queue_forget(orphans)
        dropped = kv_files.remove(root, list(dict.fromkeys([*waiting, *orphans])))
    here = [
        name
        for name in store.profiles()
        if files.shard_folder(root, _model_of(name), 0).parent.is_dir()
    ]
    lost = _lost(store, here, lambda keys: kv_files.locate(root, keys), dry_run=dry_run)
    unfinished = kv_files.remove_abandoned(root, older_than_seconds=grace_seconds, dry_run=dry_run)
    old = [] if unused_seconds is None else _unused(unknown, unused_seconds)
    if not dry_run:
        kv_files.remove(root, [entry.key for entry in old])
    return GcReport(
        orphans=len(orphans),
        waiting=len(waiting),
        lost=lost,
        dropped=dropped,
        unknown=len(unknown),
        unknown_bytes=sum(entry.nbytes for entry in unknown),
        removed=0 if dry_run else len(old),
        removed_bytes=0 if dry_run else sum(entry.nbytes for entry in old),
        unfinished=unfinished,
    )


def orphans_of(store: FactStore, grace_seconds: float) -> list[str]:
    """Keys whose capture was asked for at least so long ago, and of which nothing came."""
    return store.orphans(datetime.now(UTC) - timedelta(seconds=grace_seconds), 1_000_000)


def _model_of(profile: str) -> str:
    """The fingerprint in a profile ``<fingerprint>/<frame>/<window>``."""
    return profile.rsplit("/", 2)[0]


def _lost(
    store: FactStore,
    profiles: Sequence[str],
    locate: Callable[[Sequence[str]], dict[str, tuple[str, ...]]],
    *,
    dry_run: bool,
) -> int:
    lost = 0
    for profile in profiles:
        for keys in key_pages(store, profile):
            found = locate(keys)
            gone = [key for key in keys if DAMAGED_ONLY.issuperset(found.get(key, ()))]
            lost += len(gone) if dry_run or not gone else store.drop_encodings(gone)
    return lost


def _unknown(store: FactStore, root: Path) -> Iterator[kv_files.FolderSegment]:
    found = kv_files.segments(root)
    while page := list(islice(found, PAGE)):
        known: dict[str, KeyState] = store.key_states([entry.key for entry in page])
        yield from (entry for entry in page if entry.key not in known)


def _owner_tags(store: FactStore) -> set[str]:
    """What files call the owners that this store has, or ever had."""
    return {
        owner_tag(namespace_secret(store.secret, owner.partition)) for owner in every_owner(store)
    }


def _unused(
    entries: Sequence[kv_files.FolderSegment], seconds: float
) -> list[kv_files.FolderSegment]:
    before = time.time() - seconds
    return [entry for entry in entries if entry.used_at < before]
