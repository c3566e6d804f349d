"""The style that all figures share."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

GRAY = "#8a8f98"
COLORS = ("#e07b39", "#3b82c4", "#3fa56b", "#a05bc4", "#c9a227", "#c44e6a", "#5a9ea8", "#8c6d4f")
MARKERS = "osDX^vP"
WIDTH = 8.4
"""Width of every figure in inches: one width for all keeps their text the same size on the page."""
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": GRAY,
    "grid.alpha": 0.2,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "lines.markeredgewidth": 0,
    # Text stays text, and the same figure is the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "modebridge",
}


def styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Draw in `STYLE`; matplotlib is imported only when something is drawn."""

    @wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **options)

    return drawn


def axes_of(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure and its axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def svg_of(figure: Figure, *, legend: bool = True) -> str:
    """The figure as SVG, with one legend for all axes below them, where no line crosses it."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles and legend:
        letters = max(map(len, handles))
        columns = max(1, int(72 * WIDTH // (5 * letters + 38)))  # points per letter, and of the handle
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns) + 0.1)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def whole_ticks(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
