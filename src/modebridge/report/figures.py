"""The figures of the page, each one function from plain data to SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from modebridge.deploy import TradeOff
from modebridge.evaluate import CurvePoint, Reliability
from modebridge.report.drawing import COLOURS, GREY, INK, canvas, legend, svg
from modebridge.report.rows import Row
from modebridge.training import Epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "bars_figure",
    "correspondence_figure",
    "cost_figure",
    "lines_figure",
    "profile_figure",
    "reliability_figure",
    "training_figure",
]

MARKERS = "osDX^vP"
CROWD = 7
"""More families than this have their legend below the figure."""


def cost_figure(
    rows: Sequence[Row],
    times: Mapping[str, float] | None = None,
    cascades: Mapping[str, Sequence[TradeOff]] | None = None,
    name: str = "cost",
) -> str:
    """Accuracy and calibrated NLL against relative cost, the deep ensembles' line dashed.

    Rows that are far worse than one network are named below an axis instead of drawn: they would flatten all others.

    Args:
        rows: of the results table.
        times: measured time by row, in networks; None takes counted FLOPs.
        cascades: by row, what asking its further members only about unsure images buys; those of deep ensembles are
            dotted lines.
        name: of the figure, which no other on its page may have.
    """
    along = {row.name: times[row.name] if times else row.relative_flops for row in rows}
    plain = [row for row in rows if row.family == rows[0].family]
    families = dict.fromkeys(row.family for row in rows)
    crowded = len(families) > CROWD
    figure, (left, right) = canvas(1, 2, 8.4, 4.6 if crowded else 3.4)
    others = zip(_cycle(), cycle(MARKERS), list(families)[1:], strict=False)
    styles = {rows[0].family: (GREY, "o"), **{family: (colour, marker) for colour, marker, family in others}}
    for axis, what, label in ((left, "accuracy", "accuracy, %"), (right, "nll", "calibrated NLL")):
        scale = 100 if what == "accuracy" else 1
        far = _far_worse(rows, plain, what)
        axis.plot(
            [along[row.name] for row in plain],
            [scale * getattr(row, what) for row in plain],
            "--",
            color=GREY,
            linewidth=1.2,
            zorder=1,
        )
        for row in plain:
            points = (cascades or {}).get(row.name, ())
            axis.plot(
                [point.cost for point in points],
                [scale * getattr(point, what) for point in points],
                ":",
                color=next((styles[other.family][0] for other in rows if other.threshold is not None), GREY),
                linewidth=1.2,
                zorder=1,
            )
        for family, (colour, marker) in styles.items():
            chosen = [row for row in rows if row.family == family and row not in far]
            axis.scatter(
                [along[row.name] for row in chosen],
                [scale * getattr(row, what) for row in chosen],
                color=colour,
                marker=marker,
                s=28,
                label=family,
                zorder=3,
            )
        for row in plain:
            place = (along[row.name], scale * getattr(row, what))
            axis.annotate(row.name, place, (5, -10), textcoords="offset points", fontsize=8, color=INK)
        missing = ", ".join(f"{row.name} ({scale * getattr(row, what):.3g})" for row in far)
        below = f"\nnot shown, far worse: {missing}" if missing else ""
        axis.set_xlabel(("measured time, in networks" if times else "FLOPs, in networks") + below, wrap=True)
        axis.set_ylabel(label)
        axis.margins(x=0.1, y=0.14)
    if crowded:
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    else:
        legend(right)
    what = "measured time" if times else "relative FLOPs"
    return svg(
        figure, "time" if times else name, f"Accuracy and calibrated NLL of every row of the table against its {what}"
    )


def _far_worse(rows: Sequence[Row], plain: Sequence[Row], what: str) -> list[Row]:
    """Rows below one network by more than the way from there to the best deep ensemble."""
    sign = 1 if what == "accuracy" else -1
    levels = [sign * getattr(row, what) for row in plain]
    least = levels[0] - max(max(levels) - levels[0], 0.02 * abs(levels[0]))
    return [row for row in rows if sign * getattr(row, what) < least and row not in plain]


def profile_figure(profiles: Mapping[str, Sequence[CurvePoint]]) -> str:
    """NLL and accuracy along each curve."""
    figure, (left, right) = canvas(1, 2, 8.4, 3.0)
    for colour, (name, points) in zip(_cycle(), profiles.items(), strict=False):
        rs = [point.r for point in points]
        left.plot(rs, [point.nll for point in points], ".-", color=colour, label=f"curve {name}")
        right.plot(rs, [100 * point.accuracy for point in points], ".-", color=colour)
    left.set_ylabel("validation NLL")
    right.set_ylabel("validation accuracy, %")
    for axis in (left, right):
        axis.set_xlabel("r, the position on the curve")
    legend(left, ncols=2 if len(profiles) > 4 else 1)
    return svg(figure, "profile", "Validation NLL and accuracy of the networks along each curve")


def reliability_figure(diagrams: Sequence[tuple[str, Reliability, Reliability]]) -> str:
    """Accuracy against confidence before (grey) and after calibration, one panel a combination."""
    figure, axes = canvas(1, len(diagrams), 2.8 * len(diagrams), 2.9, sharey=True)
    for axis, (name, before, after) in zip(axes, diagrams, strict=True):
        axis.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1)
        for table, colour, label in ((before, GREY, "before"), (after, COLOURS[0], "after")):
            seen = table.count > 0
            axis.plot(table.confidence[seen].tolist(), table.accuracy[seen].tolist(), ".-", color=colour, label=label)
        axis.set_title(name, fontsize=9, color=INK)
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("accuracy")
    legend(axes[0], loc="upper left")
    return svg(figure, "reliability", "Reliability diagrams before and after temperature scaling")


def correspondence_figure(
    bridges: Sequence[str], targets: Sequence[str], r2: Sequence[Sequence[float]], kl: Sequence[Sequence[float]]
) -> str:
    """R2 and KL of every bridge against every curve's midpoint."""
    figure, axes = canvas(1, 2, 8.4, 0.9 + 0.26 * len(bridges))
    for axis, values, title, colours in ((axes[0], r2, "R2", "Greens"), (axes[1], kl, "KL, nats", "Oranges_r")):
        table = np.array(values)
        axis.grid(False)
        axis.pcolormesh(table, cmap=colours, alpha=0.55)
        for y, row in enumerate(table):
            for x, value in enumerate(row):
                axis.text(x + 0.5, y + 0.5, f"{value:.3f}", ha="center", va="center", fontsize=8, color=INK)
        axis.set_xticks(np.arange(len(targets)) + 0.5, targets)
        axis.set_yticks(np.arange(len(bridges)) + 0.5, bridges if axis is axes[0] else [""] * len(bridges))
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, color=INK)
    return svg(figure, "correspondence", "R2 and KL of bridges against the midpoints of curves")


def bars_figure(
    images: Tensor, truth: Sequence[str], classes: Sequence[str], probabilities: Mapping[str, Tensor], name: str
) -> str:
    """The paper's bar charts: an image, what both ends say, and what the midpoint and the bridge say.

    Args:
        images: (N, C, H, W) floats in [0, 1].
        truth: the right class of each image.
        classes: the names of the classes.
        probabilities: four tables of probabilities (N, K): the two ends, the midpoint, the bridge, in this order.
        name: of the bridge.
    """
    count = len(images)
    figure, axes = canvas(count, 3, 8.4, 1.25 * count, width_ratios=[1, 3.4, 3.4])
    labels = list(probabilities)
    colours = (GREY, COLOURS[3], COLOURS[1], COLOURS[0])
    for row in range(count):
        picture, ends, middle = axes[3 * row : 3 * row + 3]
        _picture(picture, images[row], truth[row])
        for axis, pair in ((ends, (0, 1)), (middle, (2, 3))):
            kept = _tallest([probabilities[label][row] for label in labels], 10)
            places = np.arange(len(kept))
            for offset, k in zip((-0.2, 0.2), pair, strict=True):
                heights = [float(probabilities[labels[k]][row][c]) for c in kept]
                axis.bar(places + offset, heights, 0.38, color=colours[k], label=labels[k])
            axis.set_xticks(places, [classes[c] for c in kept] if row == count - 1 or len(classes) > 10 else [])
            axis.tick_params(axis="x", labelrotation=45 if max(map(len, classes)) > 3 else 0, labelsize=7)
            axis.set_ylim(0, 1)
            axis.set_yticks([0, 0.5, 1])
            if row == 0:
                legend(axis, loc="upper center", bbox_to_anchor=(0.5, 1.45), ncols=2)
    return svg(figure, name, "Sample images with the class probabilities of both ends, the midpoint and the bridge")


def _tallest(tables: Sequence[Tensor], most: int) -> list[int]:
    """All classes where they are few, else those that somebody thinks likely."""
    if len(tables[0]) <= most:
        return list(range(len(tables[0])))
    peak = np.max([table.numpy() for table in tables], axis=0)
    return sorted(np.argsort(-peak)[:most].tolist())


def _picture(axis: Axes, image: Tensor, truth: str) -> None:
    pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels if pixels.shape[-1] == 3 else pixels[..., 0], cmap="gray", interpolation="nearest")
    axis.set_axis_off()
    axis.set_title(truth, fontsize=8, color=INK)


def training_figure(metrics: Mapping[str, Mapping[str, Sequence[Epoch]]]) -> str:
    """Training losses by epoch, a panel for each folder of artefacts: modes, curves, bridges."""
    figure, axes = canvas(1, max(1, len(metrics)), 8.4, 2.7)
    for axis, (folder, series) in zip(axes, metrics.items(), strict=False):
        for colour, (name, epochs) in zip(_cycle(), series.items(), strict=False):
            numbers = [epoch.number for epoch in epochs]
            label = name if len(series) <= 6 else None
            axis.plot(numbers, [epoch.losses["train"] for epoch in epochs], color=colour, linewidth=1.1, label=label)
        axis.set_title(folder, fontsize=9, color=INK)
        axis.set_xlabel("epoch")
        if len(series) <= 6:
            legend(axis)
    axes[0].set_ylabel("training loss")
    return svg(figure, "training", "Training losses of modes, curves and bridges by epoch")


def lines_figure(
    name: str,
    described: str,
    xlabel: str,
    panels: Sequence[tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Lines over one axis, a panel a score: what most studies draw.

    Args:
        name: of the figure.
        described: what it shows, for those who do not see it.
        xlabel: what goes along.
        panels: the label of each, and its lines by name, each as x and y.
        levels: dashed horizontal lines by panel and name, for example a deep ensemble's score.
    """
    figure, axes = canvas(1, len(panels), 2.9 * max(2, len(panels)), 2.9)
    for k, (axis, (label, lines)) in enumerate(zip(axes, panels, strict=True)):
        for colour, (line, (xs, ys)) in zip(_cycle(), lines.items(), strict=False):
            axis.plot(xs, ys, ".-", color=colour, label=line)
        for line, level in (levels or {}).get(label, {}).items():
            axis.axhline(level, color=GREY, linestyle="--", linewidth=1)
            axis.annotate(line, (0.99, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
            axis.texts[-1].set_color(INK)
        axis.set_xlabel(xlabel)
        axis.set_title(label, fontsize=9, color=INK)
        if k == 0 and len(lines) > 1:
            legend(axis)
    return svg(figure, name, described)


def _cycle() -> list[str]:
    return [*COLOURS] * 12
