"""``inferscale bench write``: injected segments into a paged cache, against a plain copy.

No model and no server take part: segments of random numbers in the shape of a model are turned to
random places and written into random pages, as the connector does it; on a CPU into caches of the
form that vLLM has there. The measure is a copy of as many bytes from one tensor to another; nothing
that reads and writes each byte once is faster. It takes turns between two places, as the segments
and pages do, so that none of them lies in a processor's cache more than the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any

import torch

from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.spread import Spread
from inferscale_sdk.bench.speed.tables import WAY_NAMES
from inferscale_sdk.bench.speed.timing import collector_paused
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.injection.paged import PagedCache, PageWriter, by_channel, find_writer
from inferscale_sdk.injection.pieces import Piece, gather
from inferscale_sdk.kv.layout import SegmentLayout
from inferscale_sdk.kv.rows import Lent, Rows
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.rope.table import RotaryTable

__all__ = ["WriteOptions", "measure_write"]

_SLOTS = {"cuda": 16, "cpu": 128}  # of a page, as vLLM has them
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How much to write. The shape is that of Llama-3.1-8B unless told otherwise.

    Args:
        ks: Facts written at once.
        tokens: Tokens of each fact.
        rounds: Times each way is timed at each k.
        layers: Attention layers.
        kv_heads: Key/value heads of a layer.
        head_dim: Channels of a head.
        device: Where the cache lies.
        dtype: Of keys and values, ``bfloat16`` or ``float32``.
        seed: Of everything drawn.

    Raises:
        ConfigurationError: A number is out of range, or there is no such device here.
    """

    ks: tuple[int, ...] = (5, 10, 20, 50)
    tokens: int = 28
    rounds: int = 30
    layers: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    device: str = "cuda"
    dtype: str = "bfloat16"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1:
            raise ConfigurationError(f"ks={self.ks} must be numbers from 1 on")
        for name in ("tokens", "rounds", "layers", "kv_heads", "head_dim"):
            if (value := getattr(self, name)) < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")
        if self.head_dim % 2:
            raise ConfigurationError(f"head_dim={self.head_dim} must be even")
        if self.device not in ("cuda", "cpu"):
            raise ConfigurationError(f"device={self.device!r} must be cuda or cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigurationError("there is no CUDA device here; device=cpu measures a CPU")
        if self.dtype not in _DTYPES:
            raise ConfigurationError(f"dtype={self.dtype!r} must be one of {', '.join(_DTYPES)}")

    @property
    def layout(self) -> SegmentLayout:
        """Of the segments."""
        return SegmentLayout(self.layers, self.kv_heads, self.head_dim, _DTYPES[self.dtype])


@dataclass(frozen=True, slots=True)
class _Round:
    """What is written once."""

    pieces: tuple[Piece, ...]
    slots: torch.Tensor


class _Bed:
    """Segments, a cache, and the ways from one to the other."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._random = Random(options.seed)  # noqa: S311 - a measurement, not a secret
        self._device = torch.device(options.device)
        self._layout = options.layout
        self._dtype = self._layout.dtype
        self._page = _SLOTS[options.device]
        most = max(options.ks) * options.tokens
        n_facts = 2 * max(options.ks)  # so that the last round's are not in a cache
        rows = torch.randn(
            (n_facts * options.tokens, options.layers, 2, options.kv_heads, options.head_dim),
            dtype=self._dtype,
            device=self._device,
        )
        places = torch.randperm(len(rows)).numpy().reshape(n_facts, options.tokens)
        origins = [self._random.randrange(most) for _ in range(n_facts)]
        self._lent: dict[str, Lent] = {
            str(i): Rows(rows, places[i], origins[i]) for i in range(n_facts)
        }
        self._cache = self._paged(2 * (-(-most // self._page) + 1))
        spec = RopeSpec.default(options.head_dim, 500_000.0)
        table = RotaryTable(
            spec, 2 * most + options.tokens, rounding=self._dtype, device=self._device
        )
        self._tables = (table,) * options.layers
        self.ways: dict[str, Callable[[_Round], None]] = {"chain": self._chain, "copy": self._copy}
        make = find_writer(self._device)
        writer = None if make is None else make(self._cache, self._tables)
        if writer is not None:
            self.ways["kernel"] = partial(self._write, writer, self._lent)
            self.ways["kernel_from_host"] = partial(self._write, writer, self._in_host_memory())
        if options.device == "cuda":
            self.ways["copy_from_host"] = self._copy_from_host
        shape = (2, self._numbers(most))
        self._from = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._to = torch.zeros_like(self._from)
        on_gpu = self._device.type == "cuda"
        self._pinned = torch.zeros(shape, dtype=self._dtype, pin_memory=on_gpu)
        self._turn = 0

    def _paged(self, pages: int) -> PagedCache:
        """As vLLM's backends have it."""
        heads, dim, page = self._options.kv_heads, self._options.head_dim, self._page
        on_cpu = self._options.device == "cpu"
        shape = (pages, heads, page, 2 * dim) if on_cpu else (pages, page, heads, 2 * dim)
        made = [
            torch.zeros(shape, dtype=self._dtype, device=self._device)
            for _ in range(self._options.layers)
        ]
        views = [by_channel(t) if on_cpu else (t[..., :dim], t[..., dim:]) for t in made]
        keys, values = zip(*views, strict=True)
        return PagedCache(keys, values)

    def _in_host_memory(self) -> dict[str, Lent]:
        return {
            key: Segment(key, lent.take(0, lent.n_tokens).cpu().contiguous(), lent.origin, "")
            for key, lent in self._lent.items()
        }

    def draw(self, k: int) -> _Round:
        """Some facts, in some pages."""
        tokens = self._options.tokens
        keys = self._random.sample(sorted(self._lent), k)
        pieces = tuple(Piece(key, 0, tokens, i * tokens) for i, key in enumerate(keys))
        n_pages = -(-k * tokens // self._page)
        pages = self._random.sample(range(self._cache.keys[0].shape[0]), n_pages)
        slots = torch.tensor(pages)[:, None] * self._page + torch.arange(self._page)
        return _Round(pieces, slots.flatten()[: k * tokens].contiguous())

    def time(self, way: str, work: _Round) -> float:
        """Milliseconds until everything is written."""
        self._wait()
        started = time.perf_counter()
        self.ways[way](work)
        self._wait()
        return (time.perf_counter() - started) * 1e3

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _write(self, writer: PageWriter, lent: Mapping[str, Lent], work: _Round) -> None:
        writer.write(work.pieces, lent, work.slots)

    def _chain(self, work: _Round) -> None:
        data = gather(work.pieces, self._lent, self._layout, self._tables, device=self._device)
        slots = work.slots.to(self._device)
        page, slot = slots // self._page, slots % self._page
        for layer, (keys, values) in enumerate(data):
            self._cache.keys[layer][page, slot] = keys
            self._cache.values[layer][page, slot] = values

    def _numbers(self, n_tokens: int) -> int:
        return n_tokens * self._layout.bytes_per_token // self._dtype.itemsize

    def _copy(self, work: _Round) -> None:
        self._plain_copy(self._from, work)

    def _copy_from_host(self, work: _Round) -> None:
        self._plain_copy(self._pinned, work)

    def _plain_copy(self, source: torch.Tensor, work: _Round) -> None:
        n = self._numbers(len(work.slots))
        self._turn = 1 - self._turn
        self._to[self._turn, :n].copy_(source[self._turn, :n], non_blocking=True)


def measure_write(options: WriteOptions, stages: Stages) -> dict[str, Any]:
    """Time every way that this device has, in turns.

    Args:
        options: How much to write.
        stages: Told how far it is.
    """
    with stages.stage("segments", "Making segments"):
        bed = _Bed(options)
    times: dict[str, dict[int, list[float]]] = {way: {} for way in WAY_NAMES if way in bed.ways}
    order = Random(options.seed + 1)  # noqa: S311 - an order, not a secret
    total = options.rounds * len(options.ks)
    with stages.steps("write", "Writing", total) as step, collector_paused():
        for k in options.ks:
            for way in times:
                bed.time(way, bed.draw(k))  # compiled, and memory allocated
        for _ in range(options.rounds):
            for k in order.sample(options.ks, len(options.ks)):
                for way in order.sample(list(times), len(times)):
                    times[way].setdefault(k, []).append(bed.time(way, bed.draw(k)))
                step()
    return {"shape": asdict(options), **_figures(options, times)}


def _figures(
    options: WriteOptions, times: Mapping[str, Mapping[int, list[float]]]
) -> dict[str, Any]:
    nbytes = {k: k * options.tokens * options.layout.bytes_per_token for k in options.ks}
    cells: dict[str, dict[str, Any]] = {
        way: {
            f"k{k}": {
                "write_ms": (spread := Spread.of(row[k])).as_dict(),
                # Read once and written once.
                "gb_per_second": round(2 * nbytes[k] / spread.median / 1e6, 1),
            }
            for k in options.ks
        }
        for way, row in times.items()
    }
    ratios: dict[str, dict[str, float]] = {}
    # On a CPU everything is in host memory.
    from_host = "copy_from_host" if "copy_from_host" in times else "copy"
    for way, copy in (("kernel", "copy"), ("chain", "copy"), ("kernel_from_host", from_host)):
        if way in times:
            ratios[f"{way}_over_{copy}"] = {
                f"k{k}": round(
                    Spread.of(times[way][k]).median / Spread.of(times[copy][k]).median, 3
                )
                for k in options.ks
            }
    return {
        "mib": {f"k{k}": round(n / 2**20, 1) for k, n in nbytes.items()},
        "cells": cells,
        "ratios": ratios,
    }
