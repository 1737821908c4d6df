"""Worker half: the tiers that the operator asked for, opened for one rank."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from inferscale_sdk.errors import StoreError
from inferscale_sdk.kv.cipher import configured_cipher
from inferscale_sdk.kv.rows import Lent
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers.arena import Arena
from inferscale_sdk.tiers.base import Tier, TierStats
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.folder import locate
from inferscale_sdk.tiers.host import HostTier
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier, open_objects
from inferscale_sdk.tiers.shelves import ArenaShelf, Shelf
from inferscale_sdk.tiers.tiered import TieredStore
from inferscale_sdk.tiers.write_behind import WriteBehind

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

    from inferscale_sdk.vllm_connector.config import ConnectorConfig

__all__ = [
    "DeviceShelf",
    "division_of",
    "locate_below",
    "open_below",
    "read_at_once",
    "tier_figures",
]

log = logging.getLogger(__name__)


def division_of(parallel: ParallelConfig) -> str:
    """How a model is divided over ranks, in a word; empty if it is not.

    With fewer heads than ranks several ranks have the same head: which one a rank has depends on
    the number of ranks, and its shape does not.
    """
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    return "" if tensor * pipeline == 1 else f"tp{tensor}pp{pipeline}"


def open_below(
    config: ConnectorConfig,
    fingerprint: str,
    rank: int,
    *,
    division: str = "",
    server_id: str = "",
) -> Tier | None:
    """The tiers below host memory as one, ``None`` if there are none.

    Args:
        config: The operator's settings.
        fingerprint: The model.
        rank: This process's shard of it.
        division: How it is divided over ranks.
        server_id: Common to all processes of one server; others are told what it deletes.

    Raises:
        ConfigurationError: A setting cannot be used, or a package is missing.
        StoreError: The disk tier's folder cannot be used.
    """
    common: dict[str, Any] = {
        "rank": rank,
        "division": division,
        "storage": config.storage_dtype,
        "cipher": configured_cipher(),
        "eviction": config.eviction,
        "owner_bytes": config.owner_bytes,
    }
    tiers: list[Tier] = []
    if config.disk_path is not None:
        disk = DiskTier(
            config.disk_path,
            fingerprint,
            capacity_bytes=config.disk_bytes,
            author=server_id,
            **common,
        )
        tiers.append(_behind(disk, config) if config.write_policy == "back" else disk)
    if config.remote_address is not None:
        limits = RemoteLimits(
            connect_timeout_seconds=config.remote_connect_timeout_seconds,
            timeout_seconds=config.remote_timeout_seconds,
            cooldown_seconds=config.remote_cooldown_seconds,
            ttl_seconds=config.remote_ttl_seconds,
        )
        objects = open_objects(config.remote_address, limits, config.remote_options)
        remote = RemoteTier(
            objects,
            fingerprint,
            limits=limits,
            capacity_bytes=config.remote_bytes,
            debts_folder=None if config.disk_path is None else config.disk_path / "owed",
            **common,
        )
        # By default nobody waits for another machine: captures are stored between engine steps.
        tiers.append(remote if config.write_policy == "through" else _behind(remote, config))
    if len(tiers) > 1:
        return TieredStore(*tiers)
    return tiers[0] if tiers else None


def _behind(tier: Tier, config: ConnectorConfig) -> WriteBehind:
    return WriteBehind(tier, max_bytes=config.write_queue_bytes)


def _tiers(below: Tier) -> Sequence[Tier]:
    return below.tiers if isinstance(below, TieredStore) else (below,)


def read_at_once(below: Tier, key: str) -> Segment | None:
    """A segment from this machine's disk; other machines are not asked, which may take long."""
    found = (tier.get(key) for tier in _tiers(below) if tier.name == DiskTier.name)
    return next((segment for segment in found if segment is not None), None)


def tier_figures(below: Tier | None, resident: Mapping[str, Segment]) -> list[dict[str, Any]]:
    """What each tier of a rank says of itself; host memory is the scheduler half's."""
    tiers = below.tiers if isinstance(below, TieredStore) else (below,)
    figures = [tier.stats().as_dict() for tier in tiers if tier is not None]
    if isinstance(resident, DeviceShelf):
        figures.insert(0, resident.device_stats().as_dict())
    return figures


def locate_below(
    below: Tier, config: ConnectorConfig, keys: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """In which places below memory keys lie, copies of other models and damaged ones included.

    ``unknown`` stands for a place that could not be asked.
    """
    found = {} if config.disk_path is None else dict(locate(config.disk_path, keys))
    for tier in _tiers(below):
        # Also what waits to be written, and what no folder shows.
        asked = [key for key in keys if tier.name not in found.get(key, ())]
        try:
            place, there = tier.name, tier.locate(asked)
        except StoreError as error:
            # Nobody must take for gone what could not be looked for.
            log.warning("inferscale: segments cannot be looked for: %s", error)
            place, there = "unknown", set(asked)
        found |= {key: (*found.get(key, ()), place) for key in asked if key in there}
    return found


class DeviceShelf(Shelf):
    """Host memory with a preallocated arena in the engine's memory before it.

    Whatever lies on the device lies in host memory, too, so what is resident is still the scheduler
    half's to decide, and what the device holds changes no answer: only where a load copies from. A
    segment comes to the device with its first use, as host memory has it. Used by one thread.

    Without a GPU the arena lies in host memory, beside the other copy; that saves nothing, and is
    there so that the same code runs everywhere.

    Args:
        host: Where every segment lies.
        arena: Where the recently used ones lie as well; this shelf's alone.
    """

    def __init__(self, host: Shelf, arena: Arena) -> None:
        self._host = host
        self._device = HostTier(arena.capacity_bytes, shelf=ArenaShelf(arena))
        self._device.name = "device"

    def device_stats(self) -> TierStats:
        """What lies on the device, and how often it was found there."""
        return self._device.stats()

    def on_device(self, key: str) -> bool:
        """Whether a key lies on the device."""
        return self._device.contains(key)

    def size_of(self, segment: Segment) -> int:
        """Bytes in host memory; those on the device have a budget of their own."""
        return self._host.size_of(segment)

    def __getitem__(self, key: str) -> Segment:
        segment = self._device.get(key)
        return self._raised(key) if segment is None else segment

    def _raised(self, key: str) -> Segment:
        """The segment from host memory; on the device as well, if it fits."""
        segment = self._host[key]
        with suppress(StoreError):  # no room, or another model's
            self._device.put(segment)
        return segment

    @contextmanager
    def lent(self, keys: Iterable[str]) -> Iterator[Mapping[str, Lent]]:
        """Several segments, to be read within the context and before anything else is stored.

        Those on the device are not copied. None of them goes to make room for another, so what no
        longer fits beside them comes from host memory.

        Raises:
            KeyError: One is not there.
        """
        held: list[str] = []
        try:
            yield {key: self._lend(key, held) for key in dict.fromkeys(keys)}
        finally:
            self._device.release(held)

    def _lend(self, key: str, held: list[str]) -> Lent:
        lent = self._device.lend(key)
        if lent is None:
            segment = self._raised(key)
            if not self._device.contains(key):
                return segment
            lent = self._device.lend(key)
            assert lent is not None
        held.append(key)
        return lent

    def __setitem__(self, key: str, segment: Segment) -> None:
        self._device.delete(key)
        self._host[key] = segment

    def __delitem__(self, key: str) -> None:
        self._device.delete(key)
        del self._host[key]

    def __contains__(self, key: object) -> bool:
        return key in self._host

    def __iter__(self) -> Iterator[str]:
        return iter(self._host)

    def __len__(self) -> int:
        return len(self._host)
