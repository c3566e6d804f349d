"""The figure of accuracy and NLL against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from modebridge.deploy import TradeOff
from modebridge.report.drawing import COLOURS, GREY, Canvas
from modebridge.report.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["cost_figure"]

MARKERS = "osDX^vP"
SCORES = {"accuracy": ("accuracy, %", 100.0, 2), "nll": ("calibrated NLL", 1.0, 4)}
"""Axis label, scale and digits of the two panels."""


def cost_figure(
    rows: Sequence[Row],
    times: Mapping[str, float] | None = None,
    cascades: Mapping[str, Sequence[TradeOff]] | None = None,
    name: str = "cost",
) -> str:
    """Accuracy and calibrated NLL against relative cost, with intervals; deep ensembles are joined by a dashed line.

    Rows that are far worse than one network are listed below an axis instead of drawn: they would flatten all others.

    Args:
        rows: rows of the results table.
        times: measured time per row, relative to one network; None uses counted FLOPs.
        cascades: trade-offs per row when its further members run only on unsure images; those of deep ensembles are
            drawn as dotted lines.
        name: name of the figure, unique on its page.
    """
    costs = {row.name: times[row.name] if times else row.relative_flops for row in rows}
    ensembles = [row for row in rows if row.family == rows[0].family]
    families = list(dict.fromkeys(row.family for row in rows))
    others = zip(cycle(COLOURS), cycle(MARKERS), families[1:], strict=False)
    styles = {rows[0].family: (GREY, "o"), **{family: (colour, marker) for colour, marker, family in others}}
    cascade_colour = next((styles[row.family][0] for row in rows if row.threshold is not None), GREY)
    canvas = Canvas(1, 2, 3.4)
    for axis, score in zip(canvas.axes, SCORES, strict=True):
        label, scale, _ = SCORES[score]
        far = _far_worse(rows, ensembles, score)
        places = [(costs[row.name], scale * getattr(row, score)) for row in ensembles]
        axis.plot([x for x, _ in places], [y for _, y in places], "--", color=GREY, linewidth=1.2, zorder=1)
        for row in ensembles:
            line = (cascades or {}).get(row.name, ())
            xs, ys = [point.cost for point in line], [scale * getattr(point, score) for point in line]
            axis.plot(xs, ys, ":", color=cascade_colour, linewidth=1.2, zorder=1)
        for family, (colour, marker) in styles.items():
            chosen = [row for row in rows if row.family == family and row not in far]
            _intervals(axis, chosen, costs, score, colour)
            xs, ys = [costs[row.name] for row in chosen], [scale * getattr(row, score) for row in chosen]
            tips = [_tip(row, costs[row.name], score, "time" if times else "FLOPs") for row in chosen]
            canvas.points(axis, xs, ys, tips, color=colour, marker=marker, markersize=5.5, label=family, zorder=3)
        for row, place in zip(ensembles, places, strict=True):
            # Left of the point, on the side that the line bends away from.
            side: dict[str, Any] = (
                {"xytext": (-4, 3), "va": "bottom"} if score == "accuracy" else {"xytext": (-4, -3), "va": "top"}
            )
            canvas.name(axis, row.name, place, ha="right", **side)
        missing = ", ".join(f"{row.name} ({scale * getattr(row, score):.3g})" for row in far)
        below = f"\nnot shown, far worse: {missing}" if missing else ""
        axis.set_xlabel(f"{'measured time' if times else 'FLOPs'}, relative to one network{below}", wrap=True)
        axis.set_ylabel(label)
        axis.margins(x=0.14, y=0.1)
    canvas.legend()
    cost = "measured time" if times else "relative FLOPs"
    described = f"Accuracy and calibrated NLL of every row of the table against its {cost}, with 95 % intervals"
    return canvas.svg("time" if times else name, described)


def _intervals(axis: Axes, rows: Sequence[Row], costs: Mapping[str, float], score: str, colour: str) -> None:
    scale = SCORES[score][1]
    known = [(costs[row.name], *interval) for row in rows if (interval := getattr(row, f"{score}_interval"))]
    if known:
        lows, highs = [scale * low for _, low, _ in known], [scale * high for _, _, high in known]
        axis.vlines([x for x, _, _ in known], lows, highs, color=colour, alpha=0.4, linewidth=1.1, zorder=2)


def _tip(row: Row, cost: float, score: str, unit: str) -> str:
    label, scale, digits = SCORES[score]
    interval = getattr(row, f"{score}_interval")
    between = f" [{scale * interval[0]:.{digits - 1}f} to {scale * interval[1]:.{digits - 1}f}]" if interval else ""
    return (
        f"{row.name}: {label.removesuffix(', %')} {scale * getattr(row, score):.{digits}f}{between}, {unit} x{cost:.2f}"
    )


def _far_worse(rows: Sequence[Row], ensembles: Sequence[Row], score: str) -> list[Row]:
    """Rows that are below one network by more than the best deep ensemble is above it."""
    sign = 1 if score == "accuracy" else -1
    levels = [sign * getattr(row, score) for row in ensembles]
    least = levels[0] - max(max(levels) - levels[0], 0.02 * abs(levels[0]))
    return [row for row in rows if sign * getattr(row, score) < least and row not in ensembles]
