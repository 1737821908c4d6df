"""The page on architecture describes the tree that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "inferscale_sdk"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (.+) \|$", re.MULTILINE)


def test_every_module_has_its_line_and_no_other_has_one():
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__")
    }

    assert {row[0] for row in ROW.findall(PAGE)} == modules


def test_every_module_named_in_the_text_exists():
    for module in re.findall(r"\(`([\w/]+\.py)`", PAGE):
        assert (PACKAGE / module).exists(), module
