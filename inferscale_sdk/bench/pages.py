"""A picture, and one HTML page around it that needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import MissingDependency

__all__ = ["html_table", "write_page", "write_picture"]

_STYLE = (
    "body{font:15px system-ui;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}pre{overflow:auto}"
)


def write_picture(path: Path, size: tuple[float, float], draw: Callable[[Any, Any], None]) -> Path:
    """Draw one figure and write it as PNG.

    Args:
        path: The file; its folder is made if it is not there.
        size: Width and height in inches.
        draw: Draws on the figure and the axes it is given.

    Returns:
        The file.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "plots") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    figure: Any = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, figure.subplots())
    figure.savefig(path, dpi=130)
    return path


def write_page(path: Path, title: str, picture: Path, *, before: str = "", after: str) -> Path:
    """Write a page with a picture in it.

    Args:
        path: The file; its folder is there.
        title: Plain text.
        picture: A PNG file.
        before: HTML between title and picture.
        after: HTML below the picture.

    Returns:
        The file.
    """
    title = html.escape(title)
    data = base64.b64encode(picture.read_bytes()).decode()
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n{before}"
        f'<img alt="plot" src="data:image/png;base64,{data}">\n{after}</html>\n',
        encoding="utf-8",
    )
    return path


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of plain texts."""
    lines = [_row(head, "th"), *(_row(cells, "td") for cells in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>\n"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
