"""Looking for deleted text in the raw bytes of database files, where SQL does not see it.

A deleted row may live on in free pages, in the write-ahead log, or in an index's pages. What is
looked for is every run of eight bytes of the deleted text that nothing else in the file has.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_sdk.errors import MissingDependency, StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["files_below", "residue"]

WINDOW = 8
"""Bytes; one little-endian uint64."""
_CHUNK = 1 << 26
_PREFILTER_BITS = 16
_READER = """
import shutil, sys
try:
    with open(sys.argv[1], "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
except FileNotFoundError:
    pass
except OSError as error:
    sys.exit(str(error))
"""
# Pages of the full-text index: what they hold is made from other tables, and stale terms in them
# are just what is looked for.
_DERIVED = ("_data", "_idx")


def files_below(folder: Path, *, without: Path | None = None) -> list[Path]:
    """Every file in a folder and the folders in it, ``without`` one of them."""
    left_out = None if without is None else without.resolve()
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name).resolve() != left_out]
        found += [path for name in names if (path := Path(place, name)).is_file()]
    return sorted(found)


def residue(
    files: Iterable[Path], texts: Iterable[str], *, databases: Collection[Path]
) -> dict[Path, int]:
    """How many pieces of ``texts`` are left in files although no row holds them any more.

    Text of fewer than eight bytes, and pieces that rows have as well, cannot be told apart from
    them and are not looked for.

    Args:
        files: Databases with their logs, and whatever may be a copy of one.
        texts: What was deleted.
        databases: Those whose rows may hold the same pieces. One that is not there has none.

    Returns:
        By file, the number of places; files without any are left out.

    Raises:
        MissingDependency: numpy is not installed.
        StoreError: A file cannot be read.
    """
    try:
        import numpy as np
    except ImportError:
        raise MissingDependency("numpy", "recall", "looking for traces of deleted text") from None
    wanted = np.unique(
        np.concatenate(
            [
                _windows(np.frombuffer(form.encode("utf-8", "replace"), np.uint8))
                for text in texts
                for form in {text, text.casefold()}
            ]
            or [np.empty(0, np.uint64)]
        )
    )
    for path in databases:
        if path.exists() and len(wanted):
            for chunk in _values(path):
                kept = ~np.isin(wanted, np.unique(_windows(np.frombuffer(chunk, np.uint8))))
                wanted = wanted[kept]
    if not len(wanted):
        return {}
    found = {path: _count(path, wanted) for path in files}
    return {path: n for path, n in found.items() if n}


def _windows(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Every run of eight bytes ``[window]``, in no particular order."""
    import numpy as np

    parts = [
        data[at : at + (len(data) - at) // WINDOW * WINDOW].view("<u8")
        for at in range(min(WINDOW, len(data)))
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _values(path: Path) -> Iterator[bytes]:
    """What a database's rows and schema hold, in pieces of some megabytes, folded case too."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
            ).fetchall()
            names = [name for (name,) in tables if not name.endswith(_DERIVED)]
            piece: list[bytes] = []
            for name in ["sqlite_master", *names]:
                quoted = name.replace('"', '""')
                for row in database.execute(f'SELECT * FROM "{quoted}"'):  # noqa: S608
                    piece += (form for value in row for form in _forms(value))
                    if len(piece) > 100_000:
                        yield b"\0".join(piece)
                        piece.clear()
            yield b"\0".join(piece)
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _forms(value: object) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode("utf-8", "replace")
        yield value.casefold().encode("utf-8", "replace")
    elif isinstance(value, bytes):
        yield value


def _count(path: Path, wanted: NDArray[np.uint64]) -> int:
    """Places in the file where a wanted window stands."""
    import numpy as np

    maybe = np.zeros(1 << _PREFILTER_BITS, bool)
    maybe[wanted & (len(maybe) - 1)] = True
    count = 0
    tail = b""
    for block in _blocks(path):
        data = np.frombuffer(tail + block, np.uint8)
        found = _windows(data)
        found = found[maybe[found & (len(maybe) - 1)]]
        at = np.searchsorted(wanted, found)
        count += int((wanted[np.minimum(at, len(wanted) - 1)] == found).sum())
        tail = bytes(data[-(WINDOW - 1) :])
    return count


def _blocks(path: Path) -> Iterator[bytes]:
    """A file's bytes, read by another process; nothing if it is gone.

    On POSIX, closing a database file here would drop all locks of this process on it: another one
    could then write beside the connections of this one.
    """
    command = [sys.executable, "-I", "-S", "-c", _READER, str(path)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            while block := reader.stdout.read(_CHUNK):
                yield block
            why = reader.stderr.read().decode(errors="replace").strip()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if reader.returncode:
        raise StoreError(f"{path} cannot be read: {why.splitlines()[-1] if why else 'no reason'}")
