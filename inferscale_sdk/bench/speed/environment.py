"""On what a measurement was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx

from inferscale_sdk._version import __version__

__all__ = ["environment", "server_version"]

_PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "sentence-transformers", "mem0ai")


def environment(server: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Processor, cores, memory, versions, and how busy the machine was at the start.

    Args:
        server: What the measured engine says of itself.
    """
    return {
        "inferscale_sdk": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        "memory_gib": _memory_gib(),
        "gpu": _gpu(),
        "load_average": round(os.getloadavg()[0], 2),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "server": dict(server or {}),
    }


def server_version(base_url: str) -> str | None:
    """The version of vLLM that serves there, ``None`` if it does not say."""
    try:
        answer = httpx.get(f"{base_url.rstrip('/').removesuffix('/v1')}/version", timeout=5.0)
        found = answer.json().get("version")
    except (httpx.HTTPError, ValueError, AttributeError):
        return None
    return None if found is None else str(found)


def _cores() -> int:
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _gpu() -> str | None:
    """The driver's own word on the first device; importing torch for it would take seconds."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None
