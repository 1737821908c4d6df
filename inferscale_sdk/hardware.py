"""What this machine's processor can do."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["cpu_dtype"]

_CPUINFO = Path("/proc/cpuinfo")
# oneDNN multiplies bfloat16 from these on. Without them torch does it element by element, which
# takes about six times as long as in float32.
_X86 = {"avx512bw", "avx512dq", "avx512vl"}
_ARM = {"bf16"}


def cpu_dtype(cpuinfo: Path = _CPUINFO) -> str:
    """What a model computes in on this machine's CPU if nobody says.

    Returns:
        ``"auto"``, the dtype of the weights, or ``"float32"`` if this CPU has no fast arithmetic
        for 16-bit weights. A machine that does not say what it can do gets ``"auto"``.
    """
    wanted = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM}.get(platform.machine())
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "auto"
    flags = next((set(one.split()) for one in lines if one.startswith(("flags", "Features"))), None)
    if wanted is None or flags is None or wanted <= flags:
        return "auto"
    return "float32"
