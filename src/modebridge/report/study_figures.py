"""The figures of studies: lines over a number, dots over categories."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import Any

from modebridge.report.drawing import COLOURS, GREY, INK, Canvas, whole_ticks
from modebridge.report.tables import Cell

__all__ = ["dots_figure", "lines_figure"]


def lines_figure(
    name: str,
    described: str,
    xlabel: str | Sequence[str],
    panels: Sequence[tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
    levels: Mapping[str, Mapping[str, float]] | None = None,
    unordered: Collection[str] = (),
) -> str:
    """Lines over a number, one panel per score.

    Args:
        name: name of the figure.
        described: text alternative.
        xlabel: label of the x axis, or one label per panel.
        panels: label of each panel and its lines by name, each as x and y.
        levels: dashed horizontal lines by panel and name, such as the score of a deep ensemble.
        unordered: names of lines whose points have no order: drawn as points only.
    """
    columns = len(panels) if len(panels) <= 3 else 2
    rows = math.ceil(len(panels) / columns)
    canvas = Canvas(rows, columns, 2.9 * rows)
    xlabels = [xlabel] * len(panels) if isinstance(xlabel, str) else xlabel
    for axis, along, (label, lines) in zip(canvas.axes, xlabels, panels, strict=True):
        for colour, (line, (xs, ys)) in zip(cycle(COLOURS), lines.items(), strict=False):
            tips = [f"{line}: {along} {x:.4g}, {label} {y:.4g}" for x, y in zip(xs, ys, strict=True)]
            style: dict[str, Any] = {"line": "none", "markersize": 6} if line in unordered else {"line": "-"}
            canvas.points(axis, xs, ys, tips, color=colour, label=line if len(lines) > 1 else None, **style)
        for line, level in (levels or {}).get(label, {}).items():
            axis.axhline(level, color=GREY, linestyle="--", linewidth=1)
            # Beside the axes, where no line crosses it.
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "left", "va": "center"}
            axis.annotate(line, (1.01, level), fontsize=7, color=INK, annotation_clip=False, **place)
        if all(float(x).is_integer() for xs, _ in lines.values() for x in xs):
            whole_ticks(axis)
        axis.set_xlabel(along)
        axis.set_title(label, fontsize=9, color=INK)
    canvas.legend()
    return canvas.svg(name, described)


def dots_figure(name: str, described: str, panels: Sequence[tuple[str, Mapping[str, Mapping[str, Cell]]]]) -> str:
    """Dots over categories, one panel per score; bars are standard deviations.

    Args:
        name: name of the figure.
        described: text alternative.
        panels: label of each panel and its cells by series and category.
    """
    categories = list(
        dict.fromkeys(category for _, series in panels for cells in series.values() for category in cells)
    )
    most = max(len(series) for _, series in panels)
    canvas = Canvas(1, len(panels), 0.9 + 0.28 * len(categories), sharey=True)
    for axis, (label, series) in zip(canvas.axes, panels, strict=True):
        for number, (colour, (line, cells)) in enumerate(zip(cycle(COLOURS), series.items(), strict=False)):
            # Several series of one category stand a little apart, so that none hides another.
            shift = 0.2 * (number - (len(series) - 1) / 2)
            ys = [categories.index(category) + shift for category in cells]
            for y, cell in zip(ys, cells.values(), strict=True):
                if cell.std is not None and math.isfinite(cell.mean):
                    axis.plot(
                        [cell.mean - cell.std, cell.mean + cell.std], [y, y], color=colour, alpha=0.5, linewidth=2
                    )
            tips = [
                f"{category}, {line}: {_number(label, cell)}" if most > 1 else f"{category}: {_number(label, cell)}"
                for category, cell in cells.items()
            ]
            style: dict[str, Any] = {"color": colour, "markersize": 6, "label": line if most > 1 else None}
            canvas.points(axis, [cell.mean for cell in cells.values()], ys, tips, **style)
        axis.set_title(label, fontsize=9, color=INK)
        axis.margins(x=0.08)
    first = canvas.axes[0]
    first.set_yticks(range(len(categories)), categories)
    first.set_ylim(len(categories) - 0.5, -0.5)
    canvas.legend()
    return canvas.svg(name, described)


def _number(label: str, cell: Cell) -> str:
    spread = f" ± {cell.std:.2g}" if cell.std is not None else ""
    return f"{label} {cell.mean:.4g}{spread}"
