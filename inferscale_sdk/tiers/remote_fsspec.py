"""Segments in any file system that fsspec speaks to: S3, Google Cloud Storage, SFTP, a mount."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.tiers.files import (
    ABANDONED_AFTER_SECONDS,
    remove_all_abandoned,
    write_atomically,
)
from inferscale_sdk.tiers.names import SUFFIX
from inferscale_sdk.tiers.remote_base import ObjectStore, StoredObject, safe_url

__all__ = ["FsspecObjects"]

# Stores where an object appears as a whole or not at all. Elsewhere a file that is being written
# can be seen, so it is written beside its place and moved.
_WHOLE = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})
_TEMPORARY = ".tmp"
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class FsspecObjects(ObjectStore):
    """Objects are files below a folder or bucket. On a local path they are private (0600, 0700).

    File systems know no expiry: an object whose time is up is removed when it is asked for. What
    writers left that died in the middle is removed by a listing that comes an hour later.

    Args:
        url: What fsspec understands, e.g. ``s3://bucket/kv`` or ``file:///mnt/kv``.
        options: What fsspec passes to the file system. Credentials are better left to the file
            system's own environment variables or files.
        ttl_seconds: How long objects are to be found, ``None`` for ever.

    Raises:
        ConfigurationError: fsspec does not know the address's protocol, or not the options.
        MissingDependency: fsspec, or the file system's own package, is not installed.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        ttl_seconds: float | None = None,
    ) -> None:
        try:
            import fsspec
            from fsspec.implementations.local import LocalFileSystem
        except ImportError:
            raise MissingDependency("fsspec", "remote", f"segments at {safe_url(url)}") from None
        self.address = safe_url(url)
        given = {"use_listings_cache": False, "skip_instance_cache": True, **(options or {})}
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **given)
        except ImportError as error:  # the message names the package
            raise ConfigurationError(f"{self.address} cannot be opened: {error}") from None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.address} is no address that fsspec understands: {safe_url(str(error))}"
            ) from None
        self._root = str(root).rstrip("/")
        self._local = Path(self._root) if isinstance(self._fs, LocalFileSystem) else None
        protocols = self._fs.protocol
        protocols = {protocols} if isinstance(protocols, str) else set(protocols)
        self._whole = bool(protocols & _WHOLE)
        self._ttl = ttl_seconds
        if self._local is not None:
            with contextlib.suppress(OSError):  # it may be away now; listings clean up, too
                remove_all_abandoned(self._local)

    def get(self, name: str) -> bytes | None:  # noqa: D102 - as in the contract
        path = self._path(name)
        try:
            if self._ttl is not None and self._is_over(self._fs.info(path)):
                self._fs.rm_file(path)
                return None
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError:
            return None
        return data

    def head(self, name: str, nbytes: int) -> bytes | None:  # noqa: D102
        try:
            data: bytes = self._fs.cat_file(self._path(name), start=0, end=nbytes)
        except FileNotFoundError:
            return None
        return data

    def put(self, name: str, data: bytes, ttl_seconds: float | None) -> int | None:  # noqa: D102
        path = self._path(name)
        if self._local is not None:
            return write_atomically(Path(path), [data], root=self._local, fsync=False)
        replaced = self.size(name)
        if self._whole:
            self._fs.pipe_file(path, data)
            return replaced
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        temporary = f"{path}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            self._fs.pipe_file(temporary, data)
            self._fs.mv(temporary, path)
        except BaseException:
            if self._fs.exists(temporary):
                self._fs.rm_file(temporary)
            raise
        return replaced

    def size(self, name: str) -> int | None:  # noqa: D102
        try:
            info = self._fs.info(self._path(name))
        except FileNotFoundError:
            return None
        return None if self._is_over(info) else int(info["size"])

    def delete(self, name: str) -> int | None:  # noqa: D102
        path = self._path(name)
        try:
            nbytes = int(self._fs.info(path)["size"])
            self._fs.rm_file(path)
        except FileNotFoundError:
            return None
        return nbytes

    def objects(self, prefix: str) -> Iterator[StoredObject]:  # noqa: D102
        try:
            found = self._fs.find(f"{self._root}/{prefix}", detail=True)
        except FileNotFoundError:
            return
        for path, info in found.items():
            if path.endswith(_TEMPORARY):
                self._remove_abandoned(path, info)
            elif path.endswith(SUFFIX) and not self._is_over(info):
                name = path[len(self._root) :].lstrip("/")
                yield StoredObject(name, int(info["size"]), _modified(info) or 0.0)

    def _remove_abandoned(self, path: str, info: Mapping[str, Any]) -> None:
        """Remove a temporary file that is too old to be written to any more."""
        modified = _modified(info)
        if modified is not None and time.time() > modified + ABANDONED_AFTER_SECONDS:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)

    def shards(self) -> list[str]:  # noqa: D102
        found = []
        for model in self._folders(self._root):
            found += [path[len(self._root) :].strip("/") for path in self._folders(model)]
        return sorted(found)

    def _folders(self, path: str) -> list[str]:
        try:
            entries = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _is_over(self, info: Mapping[str, Any]) -> bool:
        if self._ttl is None:
            return False
        modified = _modified(info)
        return modified is not None and time.time() > modified + self._ttl


def _modified(info: Mapping[str, Any]) -> float | None:
    """When a file was written, seconds since 1970, by whatever name its file system has for it."""
    for name in _TIMES:
        match info.get(name):
            case datetime() as moment:
                if moment.tzinfo is None:
                    moment = moment.replace(tzinfo=UTC)
                return moment.timestamp()
            case int() | float() as seconds:
                return float(seconds)
            case str() as text:
                try:
                    return datetime.fromisoformat(text).timestamp()
                except ValueError:
                    continue
    return None
