"""The figures of the page and of studies, each a function from plain data to SVG, and the style that they share."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import torch
from torch import Tensor

from modebridge.report.tables import Cell
from modebridge.scoring import Correspondence, LogitTable, Row, deep_ensembles, reliability, risk_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

GRAY = "#8a8f98"
INK, PALE = "#4b5058", "#c3c7cd"  # a darker and a lighter gray
COLORS = ("#e07b39", "#3b82c4", "#3fa56b", "#a05bc4", "#c9a227", "#c44e6a", "#5a9ea8", "#8c6d4f")
LOOKS = {
    "with heads": (COLORS[0], "s"),
    "distilled": (COLORS[1], "D"),
    "cascade": (COLORS[2], "X"),
    "with type I bridges": (COLORS[3], "^"),
}
"""The color and marker of a family of rows, the same in every figure and on every page."""
LEAST_IN_BIN = 5  # the accuracy of fewer images is noise
WIDTH, NARROW = 8.4, 4.4  # inches, of every figure, and on a phone: text has the same size on the page in all of them
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


def axes_of(rows: int, columns: int, height: float, width: float = WIDTH, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure and its axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def svg_of(figure: Figure) -> str:
    """The figure as SVG, with one legend for all axes below them, where no line crosses it."""
    handles: dict[str, Any] = {}
    for axis in (axis for axis in figure.axes if axis.get_legend() is None):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        letters = max(map(len, handles))
        columns = max(1, int(72 * figure.get_figwidth() // (5 * letters + 38)))  # points per letter, and of the handle
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns) + 0.1)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def looks_of(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """The color and marker of each family of rows: networks themselves, which come first, are gray."""
    spare = cycle(zip(COLORS[4:], "vPp<", strict=True))
    looks = {rows[0].family: (GRAY, "o")}
    for family in dict.fromkeys(row.family for row in rows if row.family not in looks):
        looks[family] = LOOKS.get(family) or next(spare)
    return looks


def colors_of(rows: Sequence[Row]) -> dict[str, str]:
    """The color of each row by its name: that of its family, and darker for several networks than for one."""
    looks = looks_of(rows)
    return {row.name: INK if row.role == "two" else looks[row.family][0] for row in rows}


@styled
def cost_figure(rows: Sequence[Row], narrow: bool = False) -> str:
    """Accuracy and calibrated NLL against cost, with intervals; deep ensembles are joined by a dashed line.

    Those are named; others are in the legend, as names would collide where many rows cost little. Rows that are far
    worse than one network are listed below an axis instead of drawn: they would flatten all others.
    """
    ensembles = deep_ensembles(rows)
    figure, axes = axes_of(2, 1, 5.4, NARROW) if narrow else axes_of(1, 2, 3.4)
    for axis, (score, label, scale) in zip(
        axes, (("accuracy", "accuracy, %", 100.0), ("nll", "calibrated NLL", 1.0)), strict=True
    ):
        places = {row.name: (row.scores.cost.relative_flops, scale * getattr(row.scores, score)) for row in rows}
        far = _far_worse(rows, ensembles, score)
        line = [places[row.name] for row in ensembles]
        axis.plot([x for x, _ in line], [y for _, y in line], "--", color=GRAY, linewidth=1.2, zorder=1)
        for family, (color, marker) in looks_of(rows).items():
            shown = [row for row in rows if row.family == family and row not in far]
            for row in shown:
                if score in row.scores.intervals:
                    low, high = row.scores.intervals[score]
                    axis.vlines(places[row.name][0], scale * low, scale * high, color=color, alpha=0.4, linewidth=1.1)
            xs, ys = [places[row.name][0] for row in shown], [places[row.name][1] for row in shown]
            axis.plot(xs, ys, marker, color=color, markersize=5.5, label=family, zorder=3)
        for row, place, (_, before) in zip(ensembles, line, [line[0], *line], strict=False):
            side = (-4, 3 if place[1] >= before else -9)  # left of the point, off the line that comes from there
            short = row.name.partition(" ")[0]
            axis.annotate(short, place, side, textcoords="offset points", fontsize=8, ha="right")
        missing = ", ".join(f"{row.name} ({places[row.name][1]:.3g})" for row in far)
        below = f"\nnot shown, far worse: {missing}" if missing else ""
        axis.set_xlabel(f"cost of one image, in networks{below}", wrap=True)
        axis.set_ylabel(label)
        axis.margins(x=0.14, y=0.1)
    return svg_of(figure)


def _far_worse(rows: Sequence[Row], ensembles: Sequence[Row], score: str) -> list[Row]:
    """Rows that are below one network by more than the best deep ensemble is above it."""
    sign = 1 if score == "accuracy" else -1
    levels = [sign * getattr(row.scores, score) for row in ensembles]
    least = levels[0] - max(max(levels) - levels[0], 0.02 * abs(levels[0]))
    return [row for row in rows if sign * getattr(row.scores, score) < least and row not in ensembles]


@styled
def reliability_figure(rows: Sequence[Row], answers: LogitTable, colors: Mapping[str, str]) -> str:
    """Accuracy against confidence before and after calibration: of one network, what costs as little, and two."""
    shown = [row for row in rows if row.role in ("one", "distilled", "heads", "bridge", "two")]
    figure, axes = axes_of(1, len(shown), 2.9, sharey=True)
    for axis, row in zip(axes, shown, strict=True):
        axis.plot([0, 1], [0, 1], ":", color=GRAY, linewidth=1)
        for probabilities, style, label in (
            (answers.probabilities(row.members), {"linestyle": "--", "alpha": 0.6}, "before"),
            (answers.calibrated(row.members), {"linestyle": "-", "marker": "o"}, "after"),
        ):
            table = reliability(probabilities, answers.test_labels)
            seen = table.count >= LEAST_IN_BIN
            bins = table.confidence[seen].tolist(), table.accuracy[seen].tolist()
            axis.plot(*bins, **style, color=colors[row.name], label=f"{label} temperature scaling")
        axis.set(title=row.name, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes[0].set_ylabel("accuracy")
    return svg_of(figure)


def risk_figure(rows: Sequence[Row], answers: LogitTable, colors: Mapping[str, str]) -> str:
    """The error of answering only the most confident images: of one and two networks, and the best cheap rows."""
    cheap = sorted((row for row in rows if row.is_cheap), key=lambda row: -row.scores.aurc)
    best = {row.family: row for row in cheap}
    lines = {}
    for row in (row for row in rows if row.role in ("one", "two") or row in best.values()):
        curve = risk_coverage(answers.calibrated(row.members, threshold=row.scores.threshold), answers.test_labels)
        count = len(curve.risk)
        some = [*range(count // 5, count - 1, max(1, count // 200)), count - 1]
        lines[row.name] = (100 * curve.coverage[some]).tolist(), (100 * curve.risk[some]).tolist()
    title = "errors among images answered, %"
    return lines_figure("images answered, %, the most confident first", [(title, lines)], colors=colors)


@styled
def correspondence_figure(
    bridges: Sequence[str], targets: Sequence[str], compared: Sequence[Sequence[Correspondence]]
) -> str:
    """R2 and KL of every imitator against every target; the better, the darker."""
    figure, axes = axes_of(1, 2, 0.9 + 0.26 * len(bridges), sharey=True)
    for axis, (score, title, colors) in zip(axes, (("r2", "R2", "Greys"), ("kl", "KL, nats", "Greys_r")), strict=True):
        table = np.array([[getattr(pair, score) for pair in row] for row in compared])
        axis.grid(False)
        # Half opaque, so that the numbers stay readable on every color.
        axis.imshow(table, cmap=colors, aspect="auto", alpha=0.5)
        for y, x in product(range(len(bridges)), range(len(targets))):
            axis.text(x, y, f"{table[y, x]:.3f}", ha="center", va="center", fontsize=8)
        axis.set_xticks(range(len(targets)), targets)
        axis.set_yticks(range(len(bridges)), bridges)
        axis.set_title(title)
    return svg_of(figure)


@styled
def bars_figure(
    images: Tensor,
    truth: Sequence[str],
    classes: Sequence[str],
    panels: Sequence[Mapping[str, Tensor]],
    colors: Mapping[str, str],
) -> str:
    """An image and two bar charts per line: in each, the probabilities (N, K) of some members, by name."""
    count = len(images)
    figure, axes = axes_of(count, 3, 1.25 * count, width_ratios=[1, 3.4, 3.4])
    for row in range(count):
        picture, *charts = axes[3 * row : 3 * row + 3]
        pixels = images[row].clamp(0, 1).permute(1, 2, 0).numpy()
        picture.imshow(pixels if pixels.shape[-1] == 3 else pixels[..., 0], cmap="gray", interpolation="nearest")
        picture.set_axis_off()
        picture.set_title(truth[row], fontsize=8)
        peak = torch.stack([table[row] for members in panels for table in members.values()]).amax(dim=0)
        kept = sorted(peak.argsort(descending=True, stable=True)[:10].tolist())
        for axis, members in zip(charts, panels, strict=True):
            width = 0.8 / len(members)
            for k, (label, table) in enumerate(members.items()):
                places = np.arange(len(kept)) + width * (k - (len(members) - 1) / 2)
                axis.bar(places, table[row][kept].tolist(), 0.95 * width, color=colors[label], label=label)
            named = row == count - 1 or len(classes) > len(kept)
            axis.set_xticks(range(len(kept)), [classes[c] for c in kept] if named else [""] * len(kept))
            axis.tick_params(axis="x", labelsize=7, rotation=45 if max(map(len, classes)) > 3 else 0)
            axis.set(ylim=(0, 1), yticks=[0, 0.5, 1], xlabel="class" if row == count - 1 else "")
    return svg_of(figure)


@styled
def lines_figure(
    xlabel: str | Sequence[str],
    panels: Sequence[tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
    levels: Mapping[str, Mapping[str, float]] | None = None,
    unordered: Collection[str] = (),
    colors: Mapping[str, str] | None = None,
    scale: str = "linear",
) -> str:
    """Lines over a number, one panel per score, each with a legend of its own if it has lines of its own.

    Panels are titles and lines by name, each as x and y; `xlabel` is one for all or one for each. `levels` are dashed
    horizontal lines by panel and name, such as the score of a deep ensemble. `unordered` lines are drawn as points
    only. Colors are by the name of the line, `scale` is that of the y axes.
    """
    from matplotlib.ticker import MaxNLocator

    columns = len(panels) if len(panels) <= 3 else 2
    rows = math.ceil(len(panels) / columns)
    figure, axes = axes_of(rows, columns, 2.9 * rows)
    xlabels = [xlabel] * len(panels) if isinstance(xlabel, str) else xlabel
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, along, (label, lines) in zip(axes, xlabels, panels, strict=False):
        for color, (line, (xs, ys)) in zip(cycle(COLORS), lines.items(), strict=False):
            style = "o" if line in unordered else "o-" if len(xs) <= 15 else "-"
            color = (colors or {}).get(line, color)
            axis.plot(xs, ys, style, color=color, label=line if 1 < len(lines) <= len(COLORS) else None)
        for line, level in (levels or {}).get(label, {}).items():
            axis.axhline(level, color=GRAY, linestyle="--", linewidth=1)
            axis.annotate(line, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=7)
        if all(float(x).is_integer() for xs, _ in lines.values() for x in xs):
            axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        axis.set(xlabel=along, title=label, yscale=scale)
        if any(other.keys() != lines.keys() for _, other in panels) and axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    return svg_of(figure)


@styled
def dots_figure(panels: Sequence[tuple[str, Mapping[str, Mapping[str, Cell]]]]) -> str:
    """Dots over categories, one panel per score, with its cells by series and category; bars are the spread."""
    categories = list(
        dict.fromkeys(category for _, series in panels for cells in series.values() for category in cells)
    )
    figure, axes = axes_of(1, len(panels), 0.9 + 0.28 * len(categories), sharey=True)
    for axis, (label, series) in zip(axes, panels, strict=True):
        for number, (color, (line, cells)) in enumerate(zip(cycle(COLORS), series.items(), strict=False)):
            # Several series of one category stand a little apart, so that none hides another.
            shift = 0.2 * (number - (len(series) - 1) / 2)
            ys = [categories.index(category) + shift for category in cells]
            means, spreads = [cell.mean for cell in cells.values()], [cell.std or 0.0 for cell in cells.values()]
            shown = line if len(series) > 1 else None
            axis.errorbar(means, ys, xerr=spreads, fmt="o", color=color, markersize=6, elinewidth=2, label=shown)
        axis.set_title(label)
        axis.margins(x=0.08)
    axes[0].set_yticks(range(len(categories)), categories)
    axes[0].set_ylim(len(categories) - 0.5, -0.5)
    return svg_of(figure)
