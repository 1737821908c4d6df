"""A report of answer quality as a picture and a page."""

from __future__ import annotations

import base64
import re

import pytest

pytest.importorskip("matplotlib")

from inferscale_sdk.bench.pages import html_table
from inferscale_sdk.bench.quality.plots import write_plots
from inferscale_sdk.bench.quality.report import QualityReport, Row
from inferscale_sdk.bench.quality.statistics import Interval


def row(arm: str, evidence: str, kept: float) -> Row:
    interval = Interval(kept, kept - 0.1, kept + 0.1, 12)
    return Row(
        arm, 20, evidence, interval, {"c1": kept}, interval, {}, 1.5, interval, 0.25, 400.0, 30.0
    )


def test_a_report_is_a_picture_and_a_page_that_needs_nothing_else(tmp_path):
    rows = [row(arm, e, 0.9) for arm in ("default", "w<0>") for e in ("natural", "guaranteed")]
    kept = dict.fromkeys(("prompt", "other", "default", "w<0>"), rows[0].kept)
    report = QualityReport("Tiny & Co", "float32", "life.json", tuple(rows), kept, {}, kept, {})

    png, page = write_plots(report, tmp_path / "new" / "plots")

    assert (png.name, page.name) == ("quality.png", "quality.html")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text(encoding="utf-8")
    assert "<h1>Answer quality: Tiny &amp; Co</h1>" in text
    assert base64.b64encode(png.read_bytes()).decode() in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    cells = ["w&lt;0&gt;", "20", "natural", "12", "0.900", "0.80 to 1.00", "1.500", "0.250", "30"]
    assert "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" in text


def test_tables_hold_plain_texts():
    assert html_table(["a"], [["<b>"], ["&"]]) == (
        "<table>\n<tr><th>a</th></tr>\n<tr><td>&lt;b&gt;</td></tr>\n"
        "<tr><td>&amp;</td></tr>\n</table>\n"
    )
