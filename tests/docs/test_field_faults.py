"""Each fault that users of such systems met is a test here, by its number."""

from __future__ import annotations

import re
from pathlib import Path

from inferscale_sdk.testing.fault_matrix import FIELD_FAULTS

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"field_fault\((\d+)\)")


def test_every_number_marks_a_test() -> None:
    marked = {
        int(number)
        for path in TESTS.rglob("test_*.py")
        for number in MARK.findall(path.read_text())
    }
    assert marked == set(FIELD_FAULTS)
