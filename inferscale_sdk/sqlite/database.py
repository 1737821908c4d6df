"""One SQLite file, used by many threads and processes."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

from inferscale_sdk.errors import ConfigurationError, InferScaleError, StoreError, StoreFull
from inferscale_sdk.sqlite.migrations import Schema, migrate

__all__ = ["MEMORY", "Database"]

MEMORY = ":memory:"
_CHECKPOINT_WAIT_MS = 200


class Database:
    """Connections to one file, its schema up to date.

    The file is in WAL mode: readers see a snapshot and never wait for the writer. Connections are
    lent from a pool, so that threads may come and go; a forked child starts with an empty pool,
    because SQLite connections must not cross a fork. Deleted content is overwritten with zeros
    (``secure_delete``). A missing file is created with mode 0600, missing folders with 0700.

    Args:
        path: The file, or ``:memory:`` for a database that dies with this object.
        schema: What is in it.
        synchronous: ``FULL`` survives power loss with every commit; ``NORMAL`` may lose the last
            commits, for content that can be made again.
        busy_seconds: How long to wait for another process's write.
        if_damaged: The way out of a damaged file, as the error names it.

    Raises:
        ConfigurationError: The path is a folder, or the file is of another kind or newer.
        StoreError: The file cannot be opened or is not a database.
    """

    def __init__(
        self,
        path: Path | str,
        schema: Schema,
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_seconds: float = 30.0,
        if_damaged: str = "restore a backup",
    ) -> None:
        self.path = str(path) if str(path) == MEMORY else str(Path(path).expanduser())
        self._synchronous = synchronous
        self._busy_seconds = busy_seconds
        self._if_damaged = if_damaged
        self._in_memory = self.path == MEMORY
        self._pool: list[sqlite3.Connection] = []
        self._pool_lock = threading.Lock()
        # Threads of one process queue here instead of polling SQLite's lock.
        self._write_lock = threading.Lock()
        # A memory database is its one connection; threads take turns.
        self._memory_lock: AbstractContextManager[object] = (
            threading.RLock() if self._in_memory else nullcontext()
        )
        self._pid = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._closed = False
        if not self._in_memory:
            _create_private(Path(self.path))
        with self._errors(), self._connection() as connection:
            migrate(connection, schema, self.path)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent snapshot. Do not nest, do not write.

        Raises:
            StoreError: SQLite failed, or this object is closed.
        """
        with self._errors(), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction with the write lock: committed at the end, undone by any exception.

        Raises:
            StoreError: SQLite failed, another process held the lock for too long, or this object
                is closed.
        """
        with self._errors(), self._write_lock, self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def scrub(self) -> None:
        """Move the write-ahead log into the file and empty it, so that erased text is in neither.

        Skipped when a reader holds an old snapshot; the next scrub or close does it.
        """
        if self._in_memory:
            return
        with self._errors(), self._write_lock, self._connection() as connection:
            connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(self._busy_seconds * 1000)}")

    def close(self) -> None:
        """Close idle connections now and lent ones when they come back. Twice is fine."""
        with self._pool_lock:
            self._closed = True
            idle, self._pool = self._pool, []
            if self._pid != os.getpid():
                self._inherited += idle
                return
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._memory_lock:
            with self._pool_lock:
                if self._closed:
                    raise StoreError(f"{self.path} is closed; open the store again")
                if self._pid != os.getpid() and not self._in_memory:
                    # Closing a connection inherited by fork could drop the parent's locks.
                    self._inherited += self._pool
                    self._pool, self._pid = [], os.getpid()
                connection = self._pool.pop() if self._pool else None
            connection = connection or self._connect()
            try:
                yield connection
            finally:
                with self._pool_lock:
                    keep = not self._closed
                    if keep:
                        self._pool.append(connection)
                if not keep:
                    connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self._busy_seconds,
            isolation_level=None,  # transactions are begun and ended by read() and write() alone
            check_same_thread=False,  # a connection is used by one thread at a time
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # no text in temporary files
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            if not self._in_memory:
                self._use_wal(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # SQLite does not wait for a lock when it changes the journal mode, so we do.
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise ConfigurationError(
                    f"{self.path} is on a file system without shared memory (journal mode {mode}); "
                    "put the store on a local disk"
                )
            return

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except InferScaleError:
            raise
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"{error.object!r:.80} holds a lone surrogate and cannot be stored or looked up; "
                "decode the text properly"
            ) from None
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        path = self.path
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreError(
                f"{path} was locked by another process for more than {self._busy_seconds:g} s; "
                "end what holds it, or try again"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreFull(f"no space left for {path}; free some and try again")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return StoreError(
                f"{path} is damaged or not a SQLite database ({error}); {self._if_damaged}"
            )
        if code == sqlite3.SQLITE_READONLY:
            return StoreError(f"{path} cannot be written ({error}); check its owner and mode")
        return StoreError(f"{path}: {error}")


def _create_private(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; give the path of a file in it")
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    try:
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if not path.exists():
            _make_empty(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be created ({error}); give a path you can write") from None


def _make_empty(path: Path) -> None:
    """An empty file of mode 0600, which SQLite gives its -wal and -shm files as well.

    It is not opened under this name, nor is one that is there: on POSIX, closing a file drops all
    locks that the process holds on it, also those of other connections, and another process could
    then take away their log.
    """
    descriptor, empty = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(descriptor)
    try:
        os.link(empty, path)
    except FileExistsError:  # somebody was quicker
        pass
    except OSError:  # a file system without links
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    finally:
        Path(empty).unlink()
