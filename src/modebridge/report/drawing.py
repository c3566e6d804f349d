"""Vector figures with hover labels that follow the page's light or dark theme."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "GREY", "INK", "LEGEND", "WIDTH", "Canvas", "whole_ticks"]

INK = "#010203"
"""Placeholder for the text color, which the page sets."""
GREY = "#8a8f98"
COLOURS = ("#e07b39", "#3b82c4", "#3fa56b", "#a05bc4", "#c9a227", "#c44e6a", "#5a9ea8", "#8c6d4f")
"""Readable on white and on black; repeated when there are more lines."""
WIDTH = 8.4
"""Width of every figure in inches: one width for all keeps their text the same size on the page."""
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": INK}
CROWD = 8
"""Axes with more lines than this have their legend across the whole figure."""
HOVER = "stroke: #000; stroke-opacity: 0; stroke-width: 9"
"""An invisible rim around points, so that small ones are easy to hover over."""
RIM = "stroke: var(--paper); stroke-width: 3; stroke-linejoin: round; paint-order: stroke"
"""A rim in the page's color around names; none where a figure stands alone."""


def whole_ticks(axis: Axes) -> None:
    """Ticks at whole numbers only, for an x axis that counts."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


class Canvas:
    """A figure, its axes in reading order, and the hover labels of what is drawn on them.

    Args:
        rows: number of rows of axes.
        columns: number of axes per row.
        height: height in inches, without legends.
        **options: passed to `Figure.subplots`.
    """

    def __init__(self, rows: int, columns: int, height: float, **options: Any) -> None:
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ModebridgeError(
                "Expected matplotlib for figures, but it is not installed; pip install it."
            ) from error
        with rc_context({"font.size": 9}):
            self.figure: Figure = Figure(figsize=(WIDTH, height), layout="constrained")
            grid = self.figure.subplots(rows, columns, squeeze=False, **options)
        self.axes: list[Axes] = list(grid.flat)
        self._tips: dict[str, Sequence[str]] = {}
        self._names = count()
        for axis in self.axes:
            _plain(axis)

    def points(
        self,
        axis: Axes,
        xs: Sequence[float],
        ys: Sequence[float],
        tips: Sequence[str],
        line: str = "none",
        **style: Any,
    ) -> None:
        """Draw points with one hover label per point; points that are not finite are left out.

        Args:
            axis: where to draw.
            xs: x coordinate per point.
            ys: y coordinate per point.
            tips: hover label per point.
            line: matplotlib style of the line through the points.
            **style: passed to `Axes.plot`.
        """
        shown = [
            point for point in zip(xs, ys, tips, strict=True) if math.isfinite(point[0]) and math.isfinite(point[1])
        ]
        look: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.4, "linestyle": line, **style}
        (drawn,) = axis.plot([x for x, _, _ in shown], [y for _, y, _ in shown], markeredgewidth=0, **look)
        self.tip(drawn, *[tip for _, _, tip in shown])

    def tip(self, artist: Artist, *texts: str) -> None:
        """Give hover labels to an artist: one to the whole, or one to each of its points."""
        name = f"tips{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = texts

    def name(self, axis: Axes, text: str, place: tuple[float, float], **style: Any) -> None:
        """Write a text beside a point, with a rim in the color of the page where lines pass behind it."""
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": INK, "zorder": 2.5, **style}
        axis.annotate(text, place, **look).set_gid(f"name{next(self._names)}")

    def legend(self) -> None:
        """Add one legend for all axes below them, where no line crosses it."""
        handles: dict[str, Artist] = {}
        for axis in self.axes:
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        self._below(handles)

    def legends(self) -> None:
        """Add one legend per axes below it; those of axes with many lines share the width of the figure."""
        rows = 0
        crowded: dict[str, Artist] = {}
        for axis in self.axes:
            handles, labels = axis.get_legend_handles_labels()
            if len(labels) > CROWD:
                crowded |= {f"{axis.get_title()} {label}": one for label, one in zip(labels, handles, strict=True)}
            elif labels:
                columns = _legend_columns(labels, WIDTH / len(self.axes))
                # The padding, in units of the font size, leaves room for the ticks and the label of the x axis.
                place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}
                axis.legend(ncols=columns, columnspacing=1, **place, **LEGEND)
                rows = max(rows, math.ceil(len(labels) / columns))
        self._grow(rows)
        self._below(crowded)

    def _below(self, handles: Mapping[str, Artist]) -> None:
        if handles:
            columns = _legend_columns(list(handles), WIDTH)
            self.figure.legend(
                list(handles.values()), list(handles), loc="outside lower center", ncols=columns, **LEGEND
            )
            self._grow(math.ceil(len(handles) / columns))

    def _grow(self, rows: int) -> None:
        if rows:
            self.figure.set_figheight(self.figure.get_figheight() + 0.17 * rows + 0.1)

    def svg(self, name: str, described: str) -> str:
        """The figure as inline SVG.

        Args:
            name: prefix of its ids, unique on the page.
            described: text alternative.
        """
        from matplotlib import rc_context

        self.figure.patch.set_alpha(0)
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "modebridge"}), io.StringIO() as buffer:
            self.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
            text = buffer.getvalue()
        text = text[text.index("<svg") :].replace(INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        # The page sets the size; the figure keeps its aspect ratio.
        text = re.sub(r'width="[\d.]+pt" ', "", re.sub(r'height="[\d.]+pt" ', "", text, count=1), count=1)
        text = re.sub(r"font: ([\d.]+)px '[^']*'(, [^;\"]*)?", r"font: \1px system-ui, sans-serif", text)
        # 0.01 pt is less than a screen shows.
        text = re.sub(
            r' (d|x|y|width|height|transform)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text
        )
        text = re.sub(r'<g id="name\d+"', rf'\g<0> style="{RIM}"', text)
        for group, tips in self._tips.items():
            text = _with_tips(text, group, tips)
        text = _renumbered(text, name)
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(described)}" ', 1)


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


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Columns of a legend that fit a width in inches, as even as possible."""
    entry = 5 * max(map(len, labels)) + 38  # points: letters, the handle and the space between columns
    fitting = max(1, int(72 * width // entry))
    return math.ceil(len(labels) / math.ceil(len(labels) / fitting))


def _with_tips(text: str, group: str, tips: Sequence[str]) -> str:
    """Add `<title>` elements, which browsers show on hover: to each point of a group, or to the group itself."""
    head = f'<g id="{group}">'
    start = text.find(head)
    if start < 0:  # nothing was drawn
        return text
    end = text.find('<g id="', start + len(head))
    part = text[start : end if end >= 0 else None]
    titles = [f"<title>{html.escape(tip)}</title>" for tip in tips]
    marks = len(re.findall("<use ", part))
    if marks == len(titles):
        part = re.sub(r"<g([^>]*)>(?=\s*<use )", rf'<g\1 style="{HOVER}">', part)
        rest = iter(titles)
        labelled = re.sub(r"(<use [^>]*)/>", lambda match: f"{match[1]}>{next(rest)}</use>", part)
    elif not marks:
        labelled = part.replace(head, head + "".join(titles[:1]), 1)
    else:  # matplotlib leaves out points off the canvas: which ones, the file does not say
        labelled = part
    return text.replace(text[start : end if end >= 0 else None], labelled, 1)


def _renumbered(text: str, name: str) -> str:
    """Number the ids: matplotlib makes them from memory addresses, and the same page should be the same text."""
    numbers = {inner: k for k, inner in enumerate(dict.fromkeys(re.findall(r'id="([^"]+)"', text)))}

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}{name}-{numbers[match[2]]}" if match[2] in numbers else match[0]

    return re.sub(r'(id="|href="#|url\(#)([^")]+)', renamed, text)
