"""What a CPU computes in."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from inferscale_sdk.hardware import cpu_dtype

MILAN = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 bmi2\n"
SKYLAKE = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl\n"
GRAVITON3 = "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n"
GRAVITON2 = "processor\t: 0\nFeatures\t: fp asimd atomics\n"


@pytest.mark.parametrize(
    ("machine", "text", "dtype"),
    [
        ("x86_64", MILAN, "float32"),
        ("x86_64", SKYLAKE, "auto"),
        ("aarch64", GRAVITON3, "auto"),
        ("aarch64", GRAVITON2, "float32"),
        ("riscv64", "processor\t: 0\nisa\t: rv64\n", "auto"),
        ("x86_64", "nothing of it", "auto"),
    ],
)
def test_by_what_the_processor_says(
    machine: str, text: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_dtype(tmp_path / "cpuinfo") == dtype


def test_a_machine_that_does_not_say(tmp_path: Path) -> None:
    assert cpu_dtype(tmp_path / "none") == "auto"
