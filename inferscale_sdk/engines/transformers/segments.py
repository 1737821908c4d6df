"""The engine's segments in host memory and on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from inferscale_sdk.kv.cipher import configured_cipher
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.folder import locate
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.tiered import TieredStore

__all__ = ["SegmentStore"]


class SegmentStore:
    """Segments by key, in the same files as a vLLM server's. Safe for several threads.

    Whoever holds a segment keeps its memory, so that nothing needs to be pinned between looking a
    segment up and copying it.

    Args:
        fingerprint: The model.
        host_bytes: Budget in memory.
        disk_path: Folder on disk, ``None`` for memory only.
        disk_bytes: Budget on disk, ``None`` for no limit.

    Files are encrypted if the setting ``INFERSCALE_KV_KEY`` gives a key.
    """

    def __init__(
        self,
        fingerprint: str,
        *,
        host_bytes: int,
        disk_path: Path | None,
        disk_bytes: int | None = None,
    ) -> None:
        self._disk = (
            DiskTier(disk_path, fingerprint, capacity_bytes=disk_bytes, cipher=configured_cipher())
            if disk_path is not None
            else None
        )
        self._store = TieredStore(HostTier(host_bytes), self._disk)

    def get(self, key: str) -> Segment | None:
        """The segment, read from disk if need be."""
        self._heed_deletions()
        return self._store.get(key)

    def warm(self, keys: Iterable[str]) -> None:
        """Bring segments into memory, so that looking them up later waits for no disk."""
        if self._disk is None:
            return
        self._heed_deletions()
        for key in keys:
            if not self._store.host.contains(key):
                self._store.get(key)

    def _heed_deletions(self) -> None:
        """Let go of what other processes on the same folder deleted."""
        if self._disk is not None:
            for key in self._disk.deletions.unseen():
                self._store.host.delete(key)

    def put(self, segment: Segment) -> None:
        """Store a segment.

        Raises:
            StoreError: No tier took it.
        """
        self._store.put(segment)

    def forget(self, keys: Sequence[str]) -> int:
        """Drop segments from every tier, copies of other models and ranks included.

        Raises:
            StoreError: A file is there and cannot be removed.
        """
        forgotten = 0
        for key in dict.fromkeys(keys):
            existed = self._store.delete_everywhere(key) > 0
            forgotten += existed
        return forgotten

    def locate(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Names of the tiers in which keys lie, copies of other models and ranks included."""
        on_disk = {} if self._disk is None else locate(self._disk.root, keys)
        places = {
            key: (*(["host"] if self._store.host.contains(key) else []), *on_disk.get(key, ()))
            for key in keys
        }
        return {key: at for key, at in places.items() if at}

    def stats(self) -> dict[str, Any]:
        """Each tier's figures."""
        return {name: stats.as_dict() for name, stats in self._store.tier_stats().items()}

    def close(self) -> None:
        """Release files."""
        self._store.close()
