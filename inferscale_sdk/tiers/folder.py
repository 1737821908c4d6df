"""A store's folder seen from outside: what lies in it, whether it is whole, and taking things out.

For tools and proofs. Looking counts as no use and disturbs no server that works on the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_sdk.errors import CorruptSegment, StoreError, WrongKey
from inferscale_sdk.tiers import files
from inferscale_sdk.tiers.deletions import DeletionLog
from inferscale_sdk.tiers.names import object_name

if TYPE_CHECKING:
    from inferscale_sdk.kv.cipher import Cipher

__all__ = [
    "Damage",
    "FolderSegment",
    "copies",
    "locate",
    "owner_of",
    "remove",
    "remove_abandoned",
    "segments",
    "verify",
]

_HEADER_BYTES = 1 << 16
DISK, QUARANTINE, TEMPORARY = "disk", "quarantine", "temporary"
_KEY = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class FolderSegment:
    """A segment's file.

    Args:
        key: The segment's key.
        path: The file.
        shard: Model and rank, ``<model>/r<rank>``.
        nbytes: Its size.
        used_at: When it was written or last used, seconds since 1970.
    """

    key: str
    path: Path
    shard: str
    nbytes: int
    used_at: float

    @property
    def place(self) -> str:
        """The name of its place in the store, to which an encrypted segment is bound."""
        return object_name(self.shard, self.key)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is no whole segment.

    Args:
        segment: The file.
        reason: What is wrong with it.
        unknown: Whether it may be whole all the same: it could not be read or decrypted.
        set_aside: Whether it was moved to quarantine.
    """

    segment: FolderSegment
    reason: str
    unknown: bool = False
    set_aside: bool = False


def segments(root: Path) -> Iterator[FolderSegment]:
    """Every segment of every model and rank under ``root``; none if there is no such folder.

    Raises:
        StoreError: A folder cannot be listed.
    """
    with _listing(root):
        for shard in files.shard_folders(root):
            for entry in files.scan(shard):
                yield _segment(shard, entry)


def _segment(shard: Path, entry: files.StoredFile) -> FolderSegment:
    name = f"{shard.parent.name}/{shard.name}"
    return FolderSegment(entry.key, entry.path, name, entry.nbytes, entry.used_at_ns / 1e9)


def locate(root: Path, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
    """In which forms keys lie under ``root``, of any model and rank.

    Returns:
        For each key that is there: ``disk``, ``quarantine`` (a damaged copy) or ``temporary``
        (being written, or left by a writer that died).

    Raises:
        ValueError: A key is not 40 lower-case hex digits.
        StoreError: A folder cannot be listed.
    """
    found: dict[str, dict[str, None]] = {key: {} for key in keys}
    with _listing(root):
        for shard in files.shard_folders(root):
            listed: dict[Path, list[str]] = {}
            aside = {name.partition(".")[0] for name in _names(shard / "quarantine")}
            for key, places in found.items():
                path = files.segment_path(shard, key)
                if files.is_segment_file(path):
                    places[DISK] = None
                if key in aside:
                    places[QUARANTINE] = None
                if path.parent not in listed:
                    listed[path.parent] = [n for n in _names(path.parent) if n.startswith(".")]
                if any(name.startswith(f".{key}.") for name in listed[path.parent]):
                    places[TEMPORARY] = None
    return {key: tuple(places) for key, places in found.items() if places}


def copies(root: Path, keys: Collection[str]) -> list[Path]:
    """Files under ``root`` that are named after one of the keys, but lie where no server looks.

    Raises:
        StoreError: A folder cannot be listed.
    """
    wanted = set(keys)
    found = []
    with _listing(root):
        shards = set(files.shard_folders(root))
        for place, _, names in os.walk(root, onerror=_raise):
            for name in names:
                path = Path(place, name)
                named = wanted.intersection(_KEY.findall(name))
                if named and not (path.parent.parent in shards and _is_own(path, named)):
                    found.append(path)
    return sorted(found)


def _is_own(path: Path, keys: Collection[str]) -> bool:
    """Whether a file of a shard is a key's: whole, set aside, or being written."""
    for key in keys:
        proper = files.segment_path(path.parent.parent, key)
        aside = path.parent.name == QUARANTINE and path.name.startswith(f"{key}.")
        unfinished = path.parent == proper.parent and path.name.startswith(f".{key}.")
        if path == proper or aside or unfinished:
            return True
    return False


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _listing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root} cannot be listed: {error}; mend its permissions") from error


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def remove(root: Path, keys: Collection[str]) -> int:
    """Drop keys under every model and rank, damaged copies and what dead writers left included.

    A server that works on the folder drops them from its memory, too, before it next answers or
    within a second.

    Returns:
        How many segments there were, damaged copies not counted.

    Raises:
        ValueError: A key is not 40 lower-case hex digits.
        StoreError: A file is there and cannot be removed, or others cannot be told.
    """
    removed = 0
    try:
        for shard in files.shard_folders(root):
            for key in keys:
                path = files.segment_path(shard, key)
                if files.is_segment_file(path):
                    path.unlink(missing_ok=True)
                    removed += 1
                files.remove_quarantined(shard, key)
                files.remove_abandoned(shard, key)
    except OSError as error:
        raise StoreError(f"segments cannot be removed from {root}: {error}") from error
    if root.is_dir():
        with closing(DeletionLog(root)) as deletions:
            deletions.add(keys)
    return removed


def remove_abandoned(root: Path, *, older_than_seconds: float, dry_run: bool = False) -> int:
    """Remove what writers left that died in the middle; returns how many files there were.

    Raises:
        StoreError: A folder cannot be listed, or a file cannot be removed.
    """
    try:
        return files.remove_all_abandoned(
            root, older_than_seconds=older_than_seconds, dry_run=dry_run
        )
    except OSError as error:
        raise StoreError(f"{root} cannot be cleaned up: {error}; mend its permissions") from error


def owner_of(found: FolderSegment, *, cipher: Cipher | None = None) -> str:
    """Whose budget a segment counts against, as its file says; empty if it does not, or cannot.

    Args:
        found: Which.
        cipher: Opens encrypted segments; without it nothing is known of them.
    """
    from inferscale_sdk.kv.cipher import is_sealed
    from inferscale_sdk.kv.codec import read_header

    try:
        with found.path.open("rb") as file:
            buffer = file.read(_HEADER_BYTES)
            if is_sealed(buffer):
                if cipher is None:
                    return ""
                buffer = bytes(cipher.open(buffer + file.read(), found.place))
        return read_header(buffer).owner
    except (OSError, CorruptSegment, WrongKey):
        return ""


def verify(
    found: FolderSegment, root: Path, *, cipher: Cipher | None = None, repair: bool = False
) -> Damage | None:
    """Read a segment and check everything that can be checked without its model.

    Args:
        found: Which.
        root: The store's folder.
        cipher: Opens encrypted segments; without it they cannot be checked.
        repair: Move a damaged file to quarantine, so that its fact is encoded again. One that
            this cipher cannot open is left where it is: it may be whole.

    Returns:
        ``None`` if it is whole, or gone meanwhile.

    Raises:
        StoreError: A damaged file cannot be set aside.
    """
    try:
        buffer, opened = files.read(found.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Damage(found, f"cannot be read: {error.strerror or error}", unknown=True)
    try:
        reason = _fault(found, root, buffer, cipher)
    except WrongKey as error:
        return Damage(found, str(error), unknown=True)
    except CorruptSegment as error:
        reason = str(error)
    if not reason:
        return None
    if not repair:
        return Damage(found, reason)
    try:
        shard = found.path.parent.parent
        moved = files.quarantine(found.path, opened, reason, folder=shard, root=root)
    except OSError as error:
        raise StoreError(f"{found.path} cannot be set aside: {error}") from error
    return Damage(found, reason, set_aside=moved)


def _fault(found: FolderSegment, root: Path, buffer: bytearray, cipher: Cipher | None) -> str:
    """What is wrong with a file's bytes, empty if nothing is.

    Raises:
        CorruptSegment: It is damaged.
        WrongKey: It is encrypted with another key, or without one at hand.
    """
    from inferscale_sdk.kv.cipher import is_sealed
    from inferscale_sdk.kv.codec import load, read_header

    if is_sealed(buffer):
        if cipher is None:
            raise WrongKey("encrypted: give INFERSCALE_KV_KEY to have it checked")
        buffer = cipher.open(buffer, found.place)
    header = read_header(buffer)
    load(buffer, expect_key=found.key, expect_fingerprint=header.fingerprint)
    shard = found.path.parent.parent
    expected = files.shard_folder(root, header.fingerprint, 0).parent
    return "" if shard.parent == expected else "it lies in the folder of another model"
