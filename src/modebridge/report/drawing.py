"""Figures as vector graphics that follow the reader's light or dark page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "GREY", "INK", "canvas", "legend", "svg"]

INK = "#010203"
"""Stands for the colour of text; the page puts its own in."""
GREY = "#8a8f98"
COLOURS = ("#e07b39", "#3b82c4", "#3fa56b", "#a05bc4", "#c9a227", "#c44e6a", "#5a9ea8", "#8c6d4f")
"""Readable on white and on black."""


def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure with axes in reading order, sizes in inches."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModebridgeError("Expected matplotlib for figures, but it is not installed; pip install it.") from error
    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes: list[Axes] = list(grid.flat)
    for axis in axes:
        _plain(axis)
    return figure, axes


def _plain(axis: Axes) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GREY)
    axis.tick_params(colors=INK, labelsize=8, length=3)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)
    axis.title.set_color(INK)
    axis.grid(True, color=GREY, alpha=0.2, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.patch.set_alpha(0)


def legend(axis: Axes, **options: Any) -> None:
    """A legend without a box, in the page's ink."""
    axis.legend(frameon=False, fontsize=8, labelcolor=INK, **options).set_zorder(5)


def svg(figure: Figure, name: str, described: str) -> str:
    """A figure as SVG to stand inside a page.

    Args:
        figure: what was drawn.
        name: makes its inner names differ from those of other figures.
        described: what it shows, for those who do not see it.
    """
    from matplotlib import rc_context

    figure.patch.set_alpha(0)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "modebridge"}), io.StringIO() as buffer:
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # The page sets the size; the figure keeps its shape.
    text = re.sub(r'width="[\d.]+pt" ', "", re.sub(r'height="[\d.]+pt" ', "", text, count=1), count=1)
    text = re.sub(r"font: ([\d.]+)px '[^']*'(, [^;\"]*)?", r"font: \1px system-ui, sans-serif", text)
    # Inner names by number: matplotlib makes them from addresses in memory, and the same page should be the same text.
    numbers = {inner: k for k, inner in enumerate(dict.fromkeys(re.findall(r'id="([^"]+)"', text)))}

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}{name}-{numbers[match[2]]}" if match[2] in numbers else match[0]

    text = re.sub(r'(id="|href="#|url\(#)([^")]+)', renamed, text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
